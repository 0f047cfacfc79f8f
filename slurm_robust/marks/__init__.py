"""What stands in Slurm's fields and in a node's one file: who writes it, and how is it read as untrusted text?"""
