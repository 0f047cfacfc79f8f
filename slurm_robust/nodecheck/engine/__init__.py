"""How is a check run, timed and judged?

`registry` names the checks, `context` tells a probe where it looks, `isolate` runs probes in processes of their own,
and `runner` brings the findings together. `history`, `streaks`, `windows` and `counters` compare with earlier runs.
"""
