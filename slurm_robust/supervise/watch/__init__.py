"""What does the running attempt show?

`watch_step` starts the agents and `fleet` keeps what they report; `output` reads the job's log: `log_shapes` finds
the numbers of known programs in it, `learned_counters` those of others, and `log_steps` tells which are progress. All
feed `attempt_state`, which `observer` polls and `suspicion` judges. `quiet_captures` takes stacks without an
incident, `slowness` judges step times, `losses` keeps the loss, and `attached_end` finds the end of somebody else's
step. `training_report` tells the daemon how the training gets on, by its `step_pace`. `node_faults` keeps
what nodes report; `kernel_records` judges what agents read in kernel logs.
"""
