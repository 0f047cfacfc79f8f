"""Decides for the daemon about the nodes of the whole site: recoveries, repairs, drains and standby pools. Pure.

* Recovery, in the order of a claim: `recovery_plan` accepts or refuses it and lists every action, with the nodes that
  `node_states` offers. `recovery_step` picks the next action from what Slurm shows (`recovery_view`). `stage_times`
  computes how long each stage took. `launch_failed` finds held jobs that may be released.
* Taking nodes out: `breaker` bounds the drains. `node_faults` decides what follows from a fault that a node has
  marked, and `leaf_faults` finds the leaf switch that several faults share. `lemon_choice` chooses the lemon that goes
  into quarantine. `repair` decides whether a drained node is repaired, and how it goes on.
* Suspects: `tested_pairs` decides what a suspect does after each test with another node, `pair_partners` chooses the
  other node, and `strikes` says when a suspect that passes its checks is drained all the same.
* Standby pools: `standby_size` and `standby_history` say how large a pool is, from a `failure_rate`, and
  `standby_health` which members are fit and which are checked next. `kept_out` finds waiting jobs that can never start
  beside the pools.
* Reading Slurm: `node_picture` finds what has changed of the nodes, and which nodes have to be read by themselves.
"""
