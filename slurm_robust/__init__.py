"""slurm_robust: training jobs on plain Slurm that survive hangs, crashes and bad nodes.

Importing the package costs nothing: the agent on every node and the prolog do it too. What a training
script uses is `slurm_robust.progress` and `slurm_robust.checkpoint`, each imported by name.
"""

__version__ = "0.1.0"
