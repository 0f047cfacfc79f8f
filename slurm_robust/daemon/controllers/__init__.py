"""What does the daemon keep true? One controller for each thing.

At each poll a controller compares the `context`'s readings of Slurm with what should be, and asks the `actor` for the
next action. In the order of a claim: `claim_intake` (what jobs ask for), `late_claims` (what they asked for in vain),
`recoveries` (carries the plans out), `incident_reports` (closes their incidents), `quarantine` with `full_check`
(suspects), `exclusions` (returns nodes to waiting jobs). Beside them: `node_failures`, `launch_failed`, `standby_pools`
and `standby_check`, `breaker` and `drain_permits`, `sweeper`. `trainings` and `sizes` only write down: every attempt of
every training, and what there was to use.
"""
