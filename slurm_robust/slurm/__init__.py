"""How do we talk to Slurm? The only code that does, apart from the user's own `srun` and the watch step's.

`factory` gives the client that the site chose, and `client` is the interface that all clients have. Every call checks
its values (`arguments`), passes through a back end, and returns values or raises one of the `errors`. `in_use` tells
which back end runs, in which version.

* The back end of Slurm's commands: `commands` calls them by `process`, with a deadline. Parsers of what they print:
  `parse` (nodes, jobs, reservations), `node_listing` (the short list of nodes), `job_gpus` (a job's GPUs), `values`
  (times, node lists, states). `unread` skips and names a record that cannot be read.
* The back end of pyslurm: `pyslurm_backend` sends requests by `pyslurm_link` to `pyslurm_worker`, a process of its
  own, in the form of `pyslurm_messages`. That process calls `pyslurm_objects` or, with pyslurm 22.5,
  `pyslurm_functions`, and `pyslurm_records` makes values of the answers. `pyslurm_fit` says which pyslurm fits which
  Slurm.
* More questions: `accounting` asks for past jobs, `admission` whether a user's jobs may start. `topology`
  reads the leaf switches of topology.conf, and `output_files` gives the names of a job's output files.
"""
