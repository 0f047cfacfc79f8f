"""Carries out the plan.

`plan_executor` ends the attempt with `step_control`, then stops, requeues, or returns a relaunch to the supervisor.
`requeue_wait` waits in a small process. `ladder_climb` has the next rung of the ladder tried, with `node_tests`.
"""
