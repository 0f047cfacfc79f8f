"""Which machine is slow? Step timings, or repeated captures, in; `Verdict` out. Pure."""
