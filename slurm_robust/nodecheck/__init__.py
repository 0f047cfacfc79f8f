"""Is this node fit to train?

`checks` has a file for each check, and `engine` runs them. `sources` and `nvml` read the node's facts, and `catalogue`
says what codes and kernel messages mean. `stages` has what prolog, epilog and health check start: `stages/gate.py`
decides what to do with an unfit node. `state_folder` is the folder in which checks keep their state between runs.
Nothing here imports torch, aiohttp, rich, click or pyslurm.
"""
