"""Recognises the verdict on a job that is slow without a machine that stands out in its step times."""

from __future__ import annotations

from slurm_robust.core.model import Conclusion, Verdict

UNNAMED = "ranks are slow, and no machine is known to be the slow one"
"""The detail of such a verdict."""


def slow_but_unnamed(verdict: Verdict) -> bool:
    """Return whether a verdict on step times finds the job slow, and names no machine."""
    return verdict.conclusion is Conclusion.UNDETERMINED and verdict.detail == UNNAMED
