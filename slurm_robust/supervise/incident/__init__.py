"""What has happened, and what should be done?

`incident_handler` opens an incident, `investigation` captures and judges, `dead_nodes` asks Slurm. `situation`
describes the result to `policy.job`, `decider` reports what that says, and the plan is returned to the supervisor.
`incident_log` keeps the incident, and writes it into the `incident_folder`.
"""
