"""Which machine is slow? Step timings in, `Verdict` out; pure.

A slow machine is slow whatever the data: its ranks are slower than the ranks that do the same work, step after step, by
the same share. What all ranks of a pipeline stage have in common, what follows a replica's data, and what slows another
rank each step, is the program's. Where ranks end their steps together and nothing separates their own work from their
waiting, nobody can be named.

`case` chooses usable ranks and steps, `effects` compares ranks with their `peers`, `outliers` finds slow ones,
`confounders` excuses them, `verdict` decides and `wording` says it.
"""

from __future__ import annotations

from collections.abc import Mapping

from slurm_robust.localize.slow.timings import StepTimings
from slurm_robust.model import Verdict


def judge_timings(
    timings: StepTimings, sizes: Mapping[str, int] | None = None, order: str = "", world_size: int = 0
) -> Verdict:
    """Who slows the job down.

    Args:
        timings: Of as many ranks and steps as there are; at least ten steps.
        sizes: The parallel layout; the one that came with the timings, where it is not given.
        order: In which it counts ranks, empty for Megatron's.
        world_size: Number of ranks, 0 for as many as the timings show.
    """
    # Supervisors judge timings late or never, and numpy costs 0.1 s and 16 MB.
    from slurm_robust.localize.slow.verdict import verdict_of  # noqa: PLC0415

    if not sizes:
        sizes, order = timings.layout, timings.layout_order
    return verdict_of(timings, sizes, order, world_size)
