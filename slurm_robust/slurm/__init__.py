"""How do we talk to Slurm? The only code that does, apart from the user's own `srun` and the watch step's.

`factory.connect` gives a `client.SlurmClient`. A call passes through its back end: `commands`, or `pyslurm_backend`
with `pyslurm_link` and `pyslurm_worker`. That checks values (`arguments`), runs the call with a deadline (`process`),
and parses the answer (`parse`, `values`) or raises one of the `errors`.
"""
