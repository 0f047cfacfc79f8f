"""How is the plan carried out?

`plan_executor` ends the attempt, then stops, relaunches or requeues with the help of `step_control`; `lineage`
remembers attempts across requeues, `attempt_start` recognises a restart from zero, and `requeue_wait` waits in a tiny
process.
"""
