"""Which machine is slow?

Step timings (`timings`, from a file or the agents) go through `judge`, which also weighs them beside a hang; repeated
captures go through `rounds`. Pure: a `Verdict` comes out. Only what `judge` loads when it is called imports numpy.
"""
