"""How is a check run, timed and judged?

`registry` names the checks: to add a check, write its file and add its name there. `choices` reads the site's
settings, `context` tells a probe where to read, `isolate` runs probes in processes of their own, and `runner` brings
the results together as `finding` defines them; `faults` makes one finding of several faults. `gpu_profiles` says what
is expected of each GPU model.

Comparing with earlier runs: `check_state` keeps what a check wants to know the next time. `counters` compares a
counter with its last value, `windows` with its values over a time, and `streaks` says since when a condition holds.
`history` counts how often in a row a fault was seen.
"""
