"""Observes the running attempt.

`attempt_state` keeps all that is known of the current attempt, and `observer` updates it once in each poll.

* The job's log: `output` reads it. `log_shapes` finds the numbers of known programs in it, `learned_counters` numbers
  of other programs, `log_epochs` epochs, and `log_steps` tells which of these numbers are progress. `task_exits` finds
  tasks that ended badly, `unreported_ends` ranks that are gone without a reported end, and `last_words` the last lines
  of the ranks that ended.
* Speed and loss: `step_pace` computes how long steps take, `slowness` judges whether a machine is slow, and
  `slow_watch` decides when a slow training is ended for tests. `losses` keeps the loss, and `loss_watch` tells when it
  is bad.
* Nodes: `fault_watch` decides when a job leaves a node that reported a fault, and `drain_watch` reads which nodes were
  drained. `stopped_ranks` continues a rank that a signal has stopped.
* Silence: `standstill` tells people once that the stacks of a silent job stand still.
* Checkpoints: `newest_checkpoint` looks which verified checkpoint is the newest.
* Steps of others: `attached_end` finds the end of a training that somebody else started, and `live_stacks` takes
  stacks of a job that is not supervised.
"""
