"""What should be done about one incident of one job? Pure.

A `Situation` goes in, a `model.Plan` comes out. `decide` has the order of the rules. `eviction` decides that a node is
evicted (`at_fault` names the nodes, `max_evictions` bounds their number), and by which road. Where no evidence names a
node, `climb` takes the next rung of the ladder (`open_rungs`, and what is remembered of it: `ladder`), and `tested`
reads what its tests have found. `bad_loss` adds the rule for a bad loss, `code_versions` that for the job's code.
"""
