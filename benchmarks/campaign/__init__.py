"""Simulated training jobs with faults of known truth, and how verdicts on them are counted.

Only `adapter` knows `slurm_robust.localize`: the simulator must not share a mistake with what it measures.
"""
