"""Follows a training over all its attempts.

`attempt_start` recognises an attempt that starts from zero, `lineage_store` keeps the `lineage` across requeues, and
`training_report` tells the daemon about the training's progress.
"""
