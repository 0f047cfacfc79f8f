"""What does the daemon only write down?

`trainings` writes down every attempt of every training, `effective_time` sums up their time, `sizes` writes down the
sizes of cluster and pools, and `lost_jobs` tells of trainings that Slurm forgot.
"""
