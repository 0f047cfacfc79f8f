"""Handles what has happened to a job: opens an incident, judges it, and has the policy make a plan.

`incident_handler` opens an incident, `investigation` captures and judges, `dead_nodes` asks Slurm. `situation`
describes the result to `policy.job`, `decider` reports its plan, and the plan is returned to the supervisor.
`incident_log` keeps the incident, and writes it into the incident's folder. `ladder_state` remembers what was tried
before, `verdict_of_tests` says what tests of the job's nodes mean, and `resumption` closes the incident at the first
new step. Without an incident, `quiet_captures` takes stacks, `dead_ranks` waits for the other ranks after a death,
`waited_for` finds whom a rank waits for, `full_disk` finds full disks, and `replay_settings` sets up a replay of steps.
`left_alone` deals with hangs about which nothing is done yet: when something will be done, and who is told meanwhile.
"""
