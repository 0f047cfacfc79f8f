"""Where do the facts come from?

`journal` reads the daemon's journal, `folders` adds what the incidents' own folders say of what broke, `accounting`
asks Slurm for every job, and `doubts` compares them. None is needed: one that is away becomes a sentence among the
doubts.
"""
