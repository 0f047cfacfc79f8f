"""Is this site set up so that jobs can be saved?

`settings` judges slurm.conf, `machine` this machine's files and kernel, `plugin` the SPANK plugin in
plugstack.conf; all are pure over what was read.
"""
