"""What runs inside the training process?

A save goes through `training_state`, `save_plan`, `bindings` and `copying` into `buffers`, and `persister_link`
notifies the node's persister. `gpu_copies` and `deferred_copies` copy from GPUs, `synchronous` saves without a
persister, `backup_setup` agrees with the other ranks on backups, and `termination` saves at a signal.
"""
