"""What is a checkpoint's file, and which steps were rolled back?

`files` and `checkpoint_files` say which files belong to a checkpoint, and `rollback_log` keeps what was rolled back.
Formats, store and health stand on these.
"""
