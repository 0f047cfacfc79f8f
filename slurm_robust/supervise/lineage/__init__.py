"""Where does this training stand, over all its attempts?

`attempt_start` recognises an attempt that starts from zero, `lineage_store` keeps the `lineage` across requeues, and
`training_report` tells the daemon how the training gets on.
"""
