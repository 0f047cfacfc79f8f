"""Runs a real multi-node Slurm on one machine, to try things out.

`cluster` is the interface: start a cluster, run commands in it, kill parts of it, end it. `conf` makes the text of the
files from a `spec`, and `files` writes them into a folder. `daemons` starts Slurm there, with what `machine` finds on
this machine, and `accounting` a private MariaDB for slurmdbd. `process` starts, finds and ends single processes,
`members` finds all processes that belong to a cluster, and `record` keeps on disk what was started.
"""
