"""Which files does a checkpoint consist of, and which steps were rolled back?

`checkpoint_files` lists the files of a checkpoint, `files` computes digests and writes small files atomically, and
`rollback_log` records each rollback from a bad loss. The folders `formats`, `store` and `health` use these modules.
"""
