"""What people's checkpoints look like: one module a format, each told by what lies in a folder, not by its name alone.

Nothing of a checkpoint is run: pickles are read by `inert`, which imports and calls nothing that they name.
"""
