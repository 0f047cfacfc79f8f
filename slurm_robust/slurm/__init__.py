"""How do we talk to Slurm? The only code that does, apart from the user's own `srun` and the watch step's.

`factory.connect` gives a `client.SlurmClient`. A call passes through its back end: `commands`, or `pyslurm_backend`
with `pyslurm_link` and, in a process of its own, `pyslurm_worker` (`pyslurm_fit` says which pyslurm fits, and what goes
by command nevertheless). That checks values (`arguments`), runs the call with a deadline (`process`),
and parses the answer (`parse`, `values`) or raises one of the `errors`.
"""
