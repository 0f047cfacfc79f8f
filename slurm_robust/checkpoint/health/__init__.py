"""Was the training healthy when this checkpoint was saved?

`health_log` records loss and gradient norm, `loss_health` judges checkpoints by them, `rollback` decides to go back to
a healthy one, and `rollback_log` records that.
"""
