"""What is only written down?

`trainings` writes down every attempt of every training, `effective_time` sums up their time, `sizes` writes down what
there was to use, and `lost_jobs` tells of trainings that Slurm forgot.
"""
