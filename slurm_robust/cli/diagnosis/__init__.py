"""What has a file, a job or an incident left to diagnose? The work of `srobust diagnose`.

`subject` says what the words name: files, a job (`job_traces`) or an incident (`saved_incidents`, `incident_files`).
`reading` gets the lines and what rules find in them; `past` gets the incidents to compare with; `shown` writes the
answer.
"""
