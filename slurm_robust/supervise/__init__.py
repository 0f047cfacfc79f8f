"""Supervises one job: tells whether it makes progress, and brings it back if it does not.

`launch` starts the training, `agent` runs on each node, `reported` keeps what the nodes report, and `watch` reads what
the attempt shows. `incident` judges what is wrong, and `recover` carries out the plan; `lineage` remembers earlier
attempts, `warm` prepares the next one, and `versions` keeps the code that it runs. `supervisor` polls these parts and
acts on their `outcome`; all parts share one `session`, with one `clock`. `job` is the job as Slurm shows it, `job_ref`
reads its name from the environment, and `incident_folder` writes the files of the job's incidents.
"""
