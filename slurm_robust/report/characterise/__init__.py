"""What runs on this cluster? Its jobs, from Slurm's accounting, described as Acme and Meta described their jobs.

`job_types` tells a job's purpose from its name if the name shows it; `job_groups` sums runs by state, size and type;
`usage` adds up GPUs in use over time and over the hours of the day; `failure_kinds` sorts failed runs by what broke;
`published` has other clusters' figures; `characterisation` computes all of it in one pass. Pure.
"""
