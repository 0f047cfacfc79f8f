"""Is this site set up so that jobs can be saved?

slurm.conf as Slurm reports it goes to `settings`; `machine` checks this machine's scripts and kernel, `gpus` whether
its GPUs can be seen, `site` robust.yaml and what it names, `targets` those of `notify`, `plugin` the SPANK plugin in
plugstack.conf. Each returns findings (`advice`), which `srobust doctor` prints.
"""
