"""What do ranks, persisters and restarts have in common?

`image` is a rank's memory, `messages` and `wire` are how processes talk, `file_layout` and `file_pieces` are the bytes
of a rank's file, `file_writer` and `local_files` write it, `options`, `tiers` and `memory_budget` limit it.
"""
