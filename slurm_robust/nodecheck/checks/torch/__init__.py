"""Do the GPUs compute and copy correctly, and as fast as they should?

`matmul`, `bandwidth` and `collective` are checks; they run in `--stage full` alone, each in a child process, and are
skipped if torch is not installed. `collective_rank` is the process of one GPU in `collective`, and `devices` has what
the checks share.
"""
