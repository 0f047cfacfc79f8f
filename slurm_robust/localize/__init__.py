"""Who is at fault?

`evidence` is what is known of one incident (read from files by `evidence_folder`, `circumstances`, `torchrun_table`,
`ras` and `recorder/`). `stacks/` says what each rank does and for how long, `layout` which ranks belong together,
`exit_causes` why a rank ended. `votes/` each read one kind of observation; `judge` asks them, the strongest first, and
returns the `Verdict`, which `verdict_text` prints. `failure` makes it comparable with earlier ones. `slow/` does the
same for jobs that move too slowly. `dead_mounts` tells a node's dead file system from a server's.
"""
