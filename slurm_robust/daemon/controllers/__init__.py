"""What does the daemon keep true? One controller for each thing.

At each poll a controller compares the `context`'s readings of Slurm with what should be, and asks the `actor` for the
next action. `recovery` brings jobs back, `nodes` takes nodes out of service and gives them back, `standby` holds the
standby pools, and `records` only writes down. All but `records` ask the `breaker` before they take a node out.
"""
