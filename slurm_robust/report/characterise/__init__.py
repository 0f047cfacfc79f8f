"""What runs on this cluster? Its jobs as Acme and Meta described theirs, from Slurm's accounting.

`job_types` tells a job's purpose from its name where that can be told; `job_groups` sums runs by state, size and type;
`usage` adds up GPUs in use over time and over the hours of the day; `failure_kinds` sorts failed runs by what broke;
`published` has other clusters' figures; `characterisation` computes all of it in one pass. Pure.
"""
