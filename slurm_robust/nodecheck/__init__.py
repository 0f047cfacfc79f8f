"""Is this node fit to train?

`registry` names the checks, `runner` runs them, `checks/` holds them; `gate` is what prolog, epilog and the health
check do with an unfit node. Nothing here imports torch, aiohttp, rich, click or pyslurm.
"""
