"""Was a drain taken back for nothing? What the journal can tell of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_robust.core.model import Action, ActionKind
from slurm_robust.daemon.store.drain_history import PastDrain, past_drains
from slurm_robust.daemon.store.journal import Journal
from slurm_robust.daemon.store.node_ledger import NodeLedger, Quarantine
from slurm_robust.daemon.store.repair_ledger import RepairLedger
from slurm_robust.marks.remedy import Remedy
from slurm_robust.policy.cluster.repair import RepairTry
from slurm_robust.report.sources.journal import read


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    """An empty one."""
    made = Journal.open(tmp_path)
    yield made
    made.close()


def drained(journal: Journal, at_s: float = 100.0, ended_at_s: float | None = None) -> None:
    """n1 is drained, and resumed."""
    ledger = NodeLedger(journal)
    ledger.drained("n1", at_s, "srobust: XID 79")
    if ended_at_s is not None:
        ledger.drain_ended("n1", ended_at_s)


def only(journal: Journal) -> PastDrain:
    """The only drain."""
    (found,) = past_drains(journal, 0.0, 1e9)
    return found


@pytest.mark.parametrize(("ended_at_s", "reverted"), [(None, False), (1000.0, True), (100.0 + 7200.0, False)])
def test_a_person_who_resumes_it_within_the_hour_takes_it_back(
    journal: Journal, ended_at_s: float | None, reverted: bool
) -> None:
    """Later, somebody has had the time to repair it."""
    drained(journal, ended_at_s=ended_at_s)
    found = only(journal)
    assert (found.reverted, bool(found.why)) == (reverted, reverted)
    assert (found.node, found.at_s, found.ended_at_s) == ("n1", 100.0, ended_at_s)


@pytest.mark.parametrize(("acted_at_s", "outcome", "reverted"), [(200.0, "passed", False), (None, "passed", True)])
def test_a_repair_that_did_something_was_needed(
    journal: Journal, acted_at_s: float | None, outcome: str, reverted: bool
) -> None:
    """A check that passed before anything was done shows the opposite."""
    drained(journal, ended_at_s=900.0)
    ledger = RepairLedger(journal)
    ledger.begin(RepairTry(0, "n1", Remedy.REBOOT, 1, "srobust: XID 79", 110.0, acted_at_s=acted_at_s, outcome=outcome))
    assert only(journal).reverted is reverted


@pytest.mark.parametrize("passed", [True, False])
def test_a_node_that_the_daemon_itself_brought_back_to_be_checked(journal: Journal, passed: bool) -> None:
    """It was set DOWN to end a job: it was out for nothing only where its check passed."""
    drained(journal, ended_at_s=120.0)
    journal.note_call("i1", Action(ActionKind.RESUME, "n1", "its job has ended"), 119.0)
    if passed:
        NodeLedger(journal).strike(Quarantine("n1", "i1", 7, "l", "hang", 100.0, 100.0), 300.0, "passed its recheck")
    assert only(journal).reverted is passed


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize(
    "reason",
    [
        "srobust: stopped responding while job 45 ran on it",
        "srobust: held up the end of job 10 for 2 s, and does not respond",
    ],
)
def test_a_node_that_was_dead_and_came_back_was_not_drained_for_nothing(
    journal: Journal, reason: str, *, again: bool
) -> None:
    """A person resumes it as soon as its slurmd is back: it is fit then, and was not when it was drained."""
    ledger = NodeLedger(journal)
    ledger.drained("n1", 100.0, "srobust: held up the end of job 10 for 2 s" if again else reason)
    if again:
        ledger.drained_again("n1", 103.0, reason)
    ledger.drain_ended("n1", 400.0)
    assert not only(journal).reverted


def test_another_reason_is_the_same_drain(journal: Journal) -> None:
    """The daemon gave it a better one after five minutes; a person resumed it after three hours."""
    drained(journal)
    NodeLedger(journal).drained_again("n1", 400.0, "srobust: XID 79, twice")
    NodeLedger(journal).drain_ended("n1", 11_000.0)
    assert only(journal) == PastDrain("n1", 100.0, "srobust: XID 79, twice", 11_000.0)


def test_the_window(journal: Journal) -> None:
    """What lasted into it counts."""
    drained(journal, 100.0, 300.0)
    drained(journal, 5000.0)
    assert [d.at_s for d in past_drains(journal, 200.0, 400.0)] == [100.0]
    assert [d.at_s for d in past_drains(journal, 400.0, 1e9)] == [5000.0]
    assert past_drains(journal, 400.0, 450.0) == []


def test_drains_from_before_the_daemon_s_first_start_are_not_judged(journal: Journal) -> None:
    """Nobody knows when they began."""
    drained(journal, 0.0, 50.0)
    assert not only(journal).reverted


def test_report_and_sizes_of_pools_judge_alike(journal: Journal) -> None:
    """A failed repair was needed; a check that passed after hours shows the opposite; a new reason begins nothing."""
    ledger, repairs = NodeLedger(journal), RepairLedger(journal)
    for node in ("n1", "n2", "n3"):
        ledger.drained(node, 100.0, "srobust: XID 79")
    repairs.begin(RepairTry(0, "n1", Remedy.REBOOT, 1, "x", 110.0, acted_at_s=120.0, outcome="failed"))
    repairs.begin(RepairTry(0, "n2", Remedy.REBOOT, 1, "x", 110.0, outcome="passed"))
    ledger.drain_ended("n1", 500.0)
    ledger.drain_ended("n2", 9000.0)
    ledger.drained_again("n3", 3600.0, "srobust: XID 79, twice")
    ledger.drain_ended("n3", 3800.0)
    assert {d.node for d in past_drains(journal, 0.0, 1e9) if d.reverted} == {"n2"}
    assert [node for node, _ in ledger.failures(0.0)] == ["n1", "n3"]
    facts = read(journal.path.parent, 0.0, 1e9, 1e9)
    assert [drain.node for drain in facts.drains if drain.reverted] == ["n2"]
