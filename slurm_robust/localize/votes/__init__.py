"""Which observations point at a node?

One module for each kind of observation. `localize.judge.VOTES` lists the votes in order of strength; the other modules
serve one vote: `busy_ranks` and `held_ranks` serve `outside_collective`; `group_scopes` and `wait_graph` serve `group`;
`flight_recorder`, `nccl_ras` and `stopped` are combined by `recorder_with_stacks`.
"""
