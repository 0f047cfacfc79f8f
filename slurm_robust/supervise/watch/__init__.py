"""What does the running attempt show?

`output` reads the job's log: `log_shapes` finds the numbers of known programs in it, `learned_counters` those of
others, and `log_steps` tells which are progress. All feed `attempt_state`, which `observer` polls. `slowness` judges
step times, `losses` keeps the loss, `step_pace` the pace, and `attached_end` finds the end of somebody else's step.
"""
