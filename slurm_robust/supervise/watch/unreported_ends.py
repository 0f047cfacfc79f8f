"""Finds ranks that are gone without a reported end: their slurmstepd is gone, too, so srun waits for them for ever.

Ranks that lost them may then end with a bare exit code, which looks like the first death, and like the program's own
end.
"""

from __future__ import annotations

from collections.abc import Container

from slurm_robust.supervise.reported.fleet import Fleet, RankInfo

REPORT_S = 5.0
"""After its last task srun ends, or at least reports the task's end, within this time on a busy machine."""


def unreported(fleet: Fleet, exits: Container[int], last_sign_s: float) -> list[RankInfo]:
    """Return the ranks without a known end, if no rank lives any more and others have ended badly (`exits`).

    If the others went on without a rank, it may have finished: the end of most programs is not reported.
    """
    ended = {r.task for r in fleet.ranks.values() if r.rank in exits}
    if fleet.runs or not ended:
        return []
    unknown = [r for r in fleet.ranks.values() if r.task not in ended and (r.step_id, r.task) not in fleet.ends]
    return [r for r in unknown if not r.task_lives and r.missed_at_s >= last_sign_s - REPORT_S]


def awaited(fleet: Fleet, now_s: float) -> bool:
    """Return whether reports may still come: the last rank has only just gone."""
    return now_s - max(r.missed_at_s for r in fleet.ranks.values()) < REPORT_S
