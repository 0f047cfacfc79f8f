"""How is a job brought back?

In the order of a claim: `claim_intake` reads what jobs ask for, `late_claims` reads claims that were not answered in
time, and `recoveries` carries the plans out; it keeps an `open_recovery` for each, and `seat_caps` counts their seats.
`node_failures` finds lost nodes, and `unasked` begins recoveries that no job asked for. `launch_failed` releases held
jobs, `exclusions` gives waiting jobs their nodes back, `seats_again` follows up seats that had too few nodes, and
`sweeper` deletes what no recovery needs. `incident_reports` closes incidents; `incident_rows` makes the rows for the
journal.
"""
