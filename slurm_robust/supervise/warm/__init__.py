"""Can the next attempt start from processes that have imported everything already?

`fitness` decides whether a command can have warm processes, and whether they fit into memory. `warm_restarts` starts a
second step of the same command beside the training step and releases it at a restart; `warm_step` is what is known of
that step, and `questions` asks the agents about its processes. `hook/` runs in the ranks' own Python: it records what
a rank imports, or imports that and waits.
"""
