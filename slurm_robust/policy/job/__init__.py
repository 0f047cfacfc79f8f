"""What should be done about one incident of one job? Pure.

A `Situation` goes in, a `model.Plan` comes out. `decide` is where it is decided that a node is evicted (`_at_fault`
names the nodes, `max_evictions` bounds their number) and by which road. `bad_loss` adds the rule for a bad loss.
"""
