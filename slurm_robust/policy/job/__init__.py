"""Decides what is done about one incident of one job. Pure.

All facts go in as a `situation`, a `model.Plan` comes out. `decide` has the order of the rules:

* `eviction` names the nodes that the next attempt leaves out, bounds their number, and chooses the road.
  `consequences` says what evidence of each grade allows, and when.
* If no evidence names a node, `climb` takes the next rung of the ladder: `open_rungs` says which rungs are open,
  `ladder` what is remembered of it, and `tested` what the tests have found.
* `repeats` compares a failure with the earlier ones, and `outage` says how long an outage of something shared is
  waited for.
* `bad_loss` decides whether a training goes back after a bad loss, and `code_versions` which version of its code the
  job runs.

While training goes on: `node_faults` decides about faults that nodes report, `drains` about drained nodes, and
`live_loss` whether the loss stays bad.
"""
