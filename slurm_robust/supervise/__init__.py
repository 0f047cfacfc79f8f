"""Is this job making progress?

`launch` starts the training, `watch` reads what the attempt shows, `incident` judges what is wrong, and `recover`
carries out the plan; `agent` runs on each node. `supervisor` polls these parts and acts on their `outcome`; all of them
share one `session`.
"""
