"""Is this site set up so that jobs can be saved?

Each module checks one thing and returns findings (`advice`), which `srobust doctor` prints:

* `settings` checks slurm.conf as Slurm reports it, `backend` the back end that `slurm.backend` chooses, and `own_jobs`
  whether the daemon's own jobs may start.
* `machine` checks this machine's scripts and kernel, `gpus` whether its GPUs can be seen, and `plugin` the SPANK
  plugin in plugstack.conf.
* `site` checks robust.yaml and what it names, and `targets` whether the targets of `notify` can be reached.
"""
