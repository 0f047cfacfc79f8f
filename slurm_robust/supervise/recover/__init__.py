"""How is the plan carried out?

`plan_executor` ends the attempt with `step_control`, then stops, requeues, or returns a relaunch to the supervisor.
`lineage_store` keeps the `lineage` across requeues, `attempt_start` recognises a start from zero, `resumption` closes
the incident at the first new step, and `requeue_wait` waits in a small process.
"""
