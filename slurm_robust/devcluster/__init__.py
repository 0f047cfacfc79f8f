"""Where can I try it?

A `spec` becomes `conf` and `files` in a folder; `daemons` starts Slurm there with what `machine` offers; `record` keeps
what runs, `members` finds every process of it, and `cluster` is the interface to all of it.
"""
