"""Starts the training step.

* The command line: `options` reads the `--robust…` options, `srun_command` reads srun's options, and `srun_refusal`
  tells whether srun refused the command line.
* Starting: `launcher` is the process that the user starts. The launcher starts srun by `srun_process`, the first time
  without waiting for a supervisor (`early_launch`). `attempt_settings` decides the environment of each launch,
  `resume_points` its checkpoint, and `moved_paths` lets the ranks run from a snapshot of the code. `warm_srun` starts
  the srun of a warm step.
* Between launcher and supervisor: `channel` is the supervisor's end of the socket, and `messages` defines the messages.
* The run among others: `run_place` tells apart the runs of one batch script, `supervisor_lock` allows one supervisor
  for each job, `other_restarters` finds other programs that restart the job, and `own_output` finds its output files.
* The end: `signal_sender` tells who sent a signal, `user_end` whether the user ended the step by signals, and
  `waiting_shell` waits in the launcher's place while the job is requeued.
* Steps of others: `attached_step` finds a training step that somebody else started.
"""
