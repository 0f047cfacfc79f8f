"""Is this job making progress?

`launch` starts the training, `agent` runs on each node, `reported` keeps what the nodes report, and `watch` reads what
the attempt shows. `incident` judges what is wrong, and `recover` carries out the plan; `lineage` remembers earlier
attempts, `warm` prepares the next one, and `versions` keeps the code that it runs. `supervisor` polls these parts and
acts on their `outcome`; all of them share one `session`, with one `clock`. `job` is the job as Slurm shows it,
`job_ref` is its name from the environment, and `incident_folder` is where everything is written.
"""
