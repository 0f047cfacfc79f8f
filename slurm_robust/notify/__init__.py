"""Who is told, and when?

`alert` has the value for one event; `planner` (pure) decides what each target is told now, `quiet_hours` whether it
sleeps; `wording` makes a message of one alert or many; `outlet` is the process without rights to Slurm that hands
messages over, by `delivery`.
"""
