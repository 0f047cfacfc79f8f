"""Which node fails a test, now that the training stands still?

Data passes in this order: `run` starts one step over the nodes, whose tasks are `node_agent`s. Each agent starts the
full check of its node, and a `rank_server`, which forks the ranks of `pair_test` and `reference_step`. The results
come back as lines. `pairing` and `alignment` judge them and choose who meets whom next (pure), and `conclusion` makes
one verdict of all tests.
"""
