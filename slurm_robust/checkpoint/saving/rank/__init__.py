"""What runs inside the training process?

`checkpointer` is the interface. A save goes through `training_state`, `save_plan`, `bindings` and `copying` into
`buffers`, and `persister_link` notifies the node's persister.
"""
