"""Prepares warm processes, which have imported everything already, for the next attempt to start from.

`fitness` decides whether a command can have warm processes, and whether they fit into memory. `warm_restarts` starts a
second step of the same command beside the training step and releases it at a restart; `warm_step` describes that step,
and `questions` asks the agents about its processes. `hook/` runs in the ranks' own Python: it records what a rank
imports, or imports the recorded modules and waits.
"""
