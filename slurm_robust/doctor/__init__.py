"""Is this site set up so that jobs can be saved?

`settings` judges slurm.conf, `machine` this machine's files and kernel; both are pure over what was read.
"""
