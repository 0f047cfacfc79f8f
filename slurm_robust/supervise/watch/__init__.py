"""What does the running attempt show?

`watch_step` starts the agents and `fleet` keeps what they report; `output` reads the job's log. Both feed
`attempt_state`, which `suspicion` judges. `quiet_captures` probes without opening an incident.
"""
