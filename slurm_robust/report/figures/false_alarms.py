"""Which actions and alarms were needless?

False alarm = an incident after which the training went on by itself (`went_on`, `came_back`). Reverted drain = a drain
whose node passed its check with nothing repaired, or that a person took back within the hour (`NodeDrain.reverted`).
Cleared suspect = a strike without a failed test: a job suspected the node, and the node passed its test. A drain that
is still open is neither right nor wrong yet. Left out: false alarms that only cost a capture; the journal does not have
them.
"""

from __future__ import annotations

from dataclasses import dataclass

from slurm_robust.report.facts import Facts
from slurm_robust.report.figures.failures import whole_drains
from slurm_robust.report.figures.trainings import was_stopped


@dataclass(frozen=True)
class FalseAlarms:
    """Counts; shares are None if there is nothing to divide by.

    Attributes:
        ended_drains: Drains that have ended, right or wrong.
        open_drains: Drains that have not ended.
    """

    incidents: int
    false_alarms: int
    drains: int
    ended_drains: int
    open_drains: int
    reverted_drains: int
    cleared_suspects: int
    failed_tests: int

    @property
    def false_share(self) -> float | None:
        """False alarms of all incidents."""
        return self.false_alarms / self.incidents if self.incidents else None

    @property
    def reverted_share(self) -> float | None:
        """The share of reverted drains among those that have ended."""
        return self.reverted_drains / self.ended_drains if self.ended_drains else None


def false_alarms(facts: Facts) -> FalseAlarms:
    """Count the needless actions and alarms in the window."""
    drains = whole_drains(facts.drains)
    ended = [drain for drain in drains if drain.ended_at_s is not None]
    return FalseAlarms(
        incidents=len(facts.incidents),
        false_alarms=sum(not was_stopped(incident) for incident in facts.incidents),
        drains=len(drains),
        ended_drains=len(ended),
        open_drains=len(drains) - len(ended),
        reverted_drains=sum(drain.reverted for drain in ended),
        cleared_suspects=sum(not strike.failed_test for strike in facts.strikes),
        failed_tests=sum(bool(strike.failed_test) for strike in facts.strikes),
    )
