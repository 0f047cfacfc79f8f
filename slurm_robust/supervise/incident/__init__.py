"""What has happened, and what should be done?

`incident_handler` opens an incident, `investigation` captures and judges, `situation` describes the result to
`policy.job`, and `incident_log` and `incident_page` write it down in the `incident_folder`.
"""
