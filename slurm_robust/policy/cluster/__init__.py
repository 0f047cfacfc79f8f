"""Which nodes may a recovery use, and what is its next step?

`recovery_plan` turns a claim into actions, `recovery_step` picks the next one, `node_states` says where each node may
go, `breaker` bounds what is taken out, `standby_size` and `standby_health` keep the pools. Pure.
"""
