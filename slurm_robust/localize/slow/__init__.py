"""Which machine is slow?

Step timings (`timings`, from a file or the agents) go through `judge`, repeated captures through `rounds`; `with_hang`
weighs both beside a hang. Pure: a `Verdict` comes out. Only what `judge` loads when it is called imports numpy.
"""
