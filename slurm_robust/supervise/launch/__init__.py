"""How is the training step started?

`options` and `srun_command` read the command line, `launcher` starts srun, `channel` connects it to the supervisor, and
`attempt_settings` decides what each launch is given. `attached_step` is a step that somebody else started.
`waiting_shell` waits in the supervisor's place while the job is requeued, and `moved_paths` has the ranks run from the
version of the code in force.
"""
