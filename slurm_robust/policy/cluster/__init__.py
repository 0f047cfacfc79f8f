"""Which nodes may a recovery use, and what is its next step? Pure.

In the order of a claim: `recovery_plan` accepts or refuses it and lists every action, with the nodes that `node_states`
offers; `recovery_step` picks the next action from what Slurm shows (`recovery_view`). `breaker` bounds the drains,
`launch_failed` finds held jobs that may be released, `standby_size` and `standby_health` are about the pools.
"""
