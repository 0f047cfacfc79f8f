"""Is this checkpoint complete, and may it be used?

`seals` writes and reads a checkpoint's seal, `seal.json`. These modules write a seal by `seals.write`: `writer` for
`checkpoint.save`, `shared_seal` for several nodes, and `seal_folder` for a whole folder. `verification`, `structure`
and `bad_values` check a checkpoint, `find` chooses one, `demotion` rejects one, and `reader` loads what was found.
`trackers` reads and rewrites the files in which frameworks name their newest checkpoint.
"""
