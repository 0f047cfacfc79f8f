"""The watch step's agent, one a node: standard library only, Python >= 3.8, started on every node at once.

It finds the ranks by their environment, reads their progress, takes their stacks on demand, and speaks with its
supervisor through its own stdin and stdout, which Slurm carries.
"""
