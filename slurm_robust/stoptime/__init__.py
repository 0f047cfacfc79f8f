"""Which node fails a test, now that the training stands still?

Data passes in this order: `run` starts one step over the nodes, whose tasks are `node_agent`s. Each agent starts the
full check of its node, and a `rank_server`, which forks the ranks of `node_rank`, `pair_rank` (with `shape_rank`) and
`reference_step`; `pair_stage` has nodes meet. The results come back as lines. `in_node`, `pairing` and `alignment`
judge them and choose who meets whom next (pure). For the test replay, `replay_run` starts a step for each group that
`replay_groups` chooses (pure), with the user's command or `reference_replay`, and `replay_results` reads what srun says
of it. `conclusion` makes one verdict of all tests.
"""
