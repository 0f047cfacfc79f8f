"""Who is told, and when?

What happened is a `alert`; `planner` (pure) decides what each target is told now, and `quiet_hours` when it sleeps;
`wording` makes a message of one alert or many; `outlet` is the process without rights to Slurm that hands messages
over, by `delivery`.
"""
