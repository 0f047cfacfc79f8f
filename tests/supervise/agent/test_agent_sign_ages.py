"""How long ago a rank showed progress: by this machine's monotonic clock, whatever the other clocks show."""

from __future__ import annotations

import pytest
from agent_stage import AgentStage
from helpers import wait_until

from slurm_robust import progress
from slurm_robust.supervise.agent.clock import SystemClock
from slurm_robust.supervise.agent.messages import FirstStep, ProgressReport, RankStart
from slurm_robust.supervise.agent.rank_table import RankTable, last_sign
from slurm_robust.supervise.agent.ranks import Target

# Another clock than this machine's, as libfaketime or a time namespace give a process: the page's times all follow it.
LYING = """
import sys, time
sys.path.insert(0, {root!r})
from slurm_robust import progress
clock = progress._monotonic_s
progress._monotonic_s = lambda: clock() - 2400.0
progress.mark("imports_done")
for step in range(10**6):
    progress.step(step)
    time.sleep(0.05)
"""


def record(step_s: float, calls: int = 1) -> progress.ProgressRecord:
    """A page that shows its last step at this time."""
    blank = progress.ProgressRecord(*[0] * 20, {}, {})  # type: ignore[arg-type]
    return blank._replace(step=calls - 1, calls=calls, step_monotonic_s=step_s, phase="train", phase_timeout_s=None)


def test_a_sign_is_as_old_as_its_page_says() -> None:
    """Also at the first look, which may come long after a hang began."""
    first = last_sign(0, record(500.0), None, 100.0, 900.0)
    assert (first.at_s, first.ahead_s) == (500.0, 0.0)
    assert last_sign(0, record(500.0), first, 899.0, 901.0) is first
    assert last_sign(0, record(901.5, 2), first, 901.0, 902.0).at_s == 901.5


@pytest.mark.parametrize("page_s", [0.5, 50.0, 2000.0, 1e12])
def test_a_page_of_another_clock_is_as_new_as_its_change(page_s: float) -> None:
    """A step between two looks is no older than the first look, and never in the future."""
    first = last_sign(0, record(page_s), None, 100.0, 900.0)
    assert (first.at_s, first.ahead_s) == (900.0, page_s - 900.0)
    later = last_sign(0, record(page_s, 2), first, 901.0, 902.0)
    assert later.at_s == 902.0, "its clock may stand still"


def test_a_node_whose_time_of_day_is_wrong_tells_ages_all_the_same(stage: AgentStage) -> None:
    """Its agent's time of day is 40 minutes behind the ranks': ages in reports and captures are seconds."""

    class Behind(SystemClock):
        def now_s(self) -> float:
            return super().now_s() - 2400.0

    victim = stage.victim(0)
    sent: list[object] = []
    table = RankTable(Target(stage.job, "n1", "1.0.1", "1"), sent.append, Behind())
    try:
        wait_until(lambda: progress.find(victim.pid), timeout_s=15, what="a page")
        table.rescan()
        table.poll()
        entries = [entry for message in sent if isinstance(message, ProgressReport) for entry in message.progress]
        assert [0 <= entry.age_s < 10 for entry in entries] == [True]
        assert 0 <= table.progress_for_archive()[0]["age_s"] < 10
    finally:
        table.watch("none")


def test_a_rank_with_a_clock_of_its_own_is_no_older(stage: AgentStage) -> None:
    """Its clock is 40 minutes behind: steps, marks and the first step are seconds ago, as the process itself is."""
    stage.victim(0, code=LYING)
    stage.start_agent()
    start = stage.receive(RankStart, rank=0)
    assert 0 <= start.marks["imports_done"] < 60
    for _ in range(3):
        assert 0 <= stage.receive(ProgressReport).progress[0].age_s < 5
    assert isinstance(start.first, FirstStep)
    assert 0 <= start.first.age_s < 60
