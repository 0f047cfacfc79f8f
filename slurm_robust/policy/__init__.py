"""What should be done? Pure: values in, decisions out; no I/O, no clock, no randomness.

`job` decides about one incident of one job, for the wrapper: that a node is evicted, and by which road training goes
on, is decided in `job/decide.py`. `cluster` decides for the daemon about the nodes of the whole site: whether a claim
is accepted, which nodes replace the evicted ones, what the next step of a recovery is, and when the breaker opens.
"""
