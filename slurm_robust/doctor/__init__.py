"""Is this site set up so that jobs can be saved?

slurm.conf as Slurm reports it goes to `settings`; `machine` checks this machine's files and kernel, `plugin` the SPANK
plugin in plugstack.conf. Each returns findings (`advice`), which `srobust doctor` prints.
"""
