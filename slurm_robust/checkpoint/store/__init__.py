"""Is this checkpoint whole, and may it be used?

`writer` writes and `seals` seals; `verification`, `structure` and `bad_values` check; `find` chooses, `demotion`
rejects, `pruning` deletes. `checkpoint_files` says which files belong to a checkpoint.
"""
