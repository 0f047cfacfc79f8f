"""How do prolog, epilog, health check and people run the checks?

`fast_path` passes a node that was found fit a moment ago; else `stage_run` runs the checks of the stage, `gate` lets
the job start or drains the node, and `cached_verdict` keeps the result for the next fast path. `command` is `srobust
check`.
"""
