"""Where can I try it? A real multi-node Slurm on one machine.

`cluster` is the interface: start a cluster, run commands in it, kill parts of it, end it. A `spec` becomes the text of
the files (`conf`), which `files` writes into a folder. `daemons` starts Slurm there, with what `machine` offers, and
`accounting` a private MariaDB for slurmdbd. `process` starts, finds and ends single processes, `members` finds all
processes that belong to a cluster, and `record` keeps on disk what was started.
"""
