"""How long after its last step is a hung job acted on, with the site's defaults? By the verdict that was reached."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from slurm_robust.config.site import SuperviseConfig
from slurm_robust.core.model import Conclusion, Verdict
from slurm_robust.policy.job.consequences import Pauses, Silence, patience_s


def acted_on_s(verdict: Verdict, took_s: float = 0.0) -> float:
    """Seconds from the last step to the action: the verdict's own time or its grade's patience, whichever is later.

    A verdict that is not corroborated waits for the action limit. It counts as it was last seen: with more captures it
    might have been corroborated sooner.

    Args:
        verdict: The last one.
        took_s: From the last step to it.
    """
    config = SuperviseConfig()
    waits_s = math.inf
    if verdict.corroborated and verdict.conclusion is not Conclusion.NONE:
        waits_s = patience_s(verdict.grade, Silence.of(took_s, "train", Pauses({"train": 1.0}), config))
    return max(took_s, min(waits_s, config.action_limit_s))


def counted(times_s: Sequence[float]) -> dict[str, int]:
    """Seconds, rounded → how many cases are acted on then; the soonest first."""
    return {str(time_s): count for time_s, count in sorted(Counter(map(round, times_s)).items())}


def told(times_s: Sequence[float]) -> str:
    """The same in words."""
    return ", ".join(f"{count} after {time_s} s" for time_s, count in counted(times_s).items())
