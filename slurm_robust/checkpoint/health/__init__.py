"""Was the training healthy when this checkpoint was saved?

`health_log` records loss and gradient norm, `loss_health` judges checkpoints by them, and `rollback` decides to go back
to a healthy one.
"""
