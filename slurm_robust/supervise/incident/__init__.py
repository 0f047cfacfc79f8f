"""What has happened, and what should be done?

`incident_handler` opens an incident, `investigation` captures and judges, `situation` describes the result to
`policy.job`, and the plan is returned to the supervisor. `incident_log` keeps the incident, and writes it into the
`incident_folder`.
"""
