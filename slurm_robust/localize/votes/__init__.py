"""Votes that name a suspect from one kind of observation each.

One module for each kind of observation. `localize/judge.py` lists the votes in the order of strength (`VOTES`); to add
a vote, write its module and add its function to `VOTES`.

* Nodes: `node_signals` judges nodes that are silent or report a fault. `dead_mounts_beside` weighs a rank in D state
  by its node's mounts.
* Ends: `exits` judges ranks that ended, `never_started` ranks that have no process yet, and `stopped` processes that a
  signal or a freezer stopped.
* Stacks: `outside_collective` names the few ranks that all others wait for, with `busy_ranks` (ranks that may be
  working) and `held_ranks` (ranks that something holds). `endless_work` names a rank that computes in one function
  without an end. `alone` judges a job of one rank.
* Groups: `group` names the parallel group in which the waiting ends, with `group_scopes` (in which kind of group a
  rank waits) and `wait_graph` (which rank waits for which).
* Recorders: `flight_recorder` judges PyTorch's dumps, `nccl_ras` NCCL's answers, and `recorder_with_stacks` combines
  both and `stopped` with stacks.
* Progress: `progress` judges the steps that ranks report. `nobody_works` recognises a deadlock, and `waiting_at_rest`
  tells a hang from one moment of a healthy step.
"""
