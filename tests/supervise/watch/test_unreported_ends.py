"""Ranks that are gone, with others that ended badly, while srun runs on and reports no end of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1]))

from supervised import FakeClock  # type: ignore[import-not-found]
from torchrun_attempt import attempt_of, finds, prints, with_ranks  # type: ignore[import-not-found]

from slurm_robust.supervise.agent.messages import from_agent
from slurm_robust.supervise.incident.waited_for import ended_ranks
from slurm_robust.supervise.watch.attempt_state import AttemptState


@pytest.fixture
def attempt(tmp_path: Path, clock: FakeClock) -> AttemptState:
    """Ranks 0 and 1 are task 0 on n1, ranks 2 and 3 are task 1 on n2; task 0 ends with exit code 1."""
    made = attempt_of(tmp_path / "slurm-5.out", clock)
    with_ranks(made)
    clock.at_s += 100.0
    hears(made, "n2", clock)
    return made


def hears(attempt: AttemptState, node: str, clock: FakeClock, kind: str = "hb") -> None:
    """A node's agent says something."""
    attempt.fleet.feed(from_agent({"t": kind, "n": node}), clock.at_s)


def goes(attempt: AttemptState, task: int, clock: FakeClock) -> None:
    """An agent no longer finds this task's ranks."""
    for rank in (2 * task, 2 * task + 1):
        gone = {"t": "gone", "n": f"n{task + 1}", "rank": rank, "pid": 100 + rank, "at": 1.0}
        attempt.fleet.feed(from_agent(gone), clock.at_s)


def task_0_ends(attempt: AttemptState, clock: FakeClock) -> None:
    """As srun reports it."""
    goes(attempt, 0, clock)
    prints(attempt, "srun: error: n1: task 0: Exited with exit code 1")
    attempt.confirm_exits()


def vanished(attempt: AttemptState, *, ended: bool = False) -> list[int]:
    """Who has, by now."""
    attempt.note_vanished(ended=ended)
    return sorted(set(ended_ranks(attempt)) - set(attempt.exits))


def test_a_task_that_went_with_its_slurmstepd_is_a_death_before_that_of_who_lost_it(
    attempt: AttemptState, clock: FakeClock
) -> None:
    """Its agent has gone, too, and another one finds no rank: it went when the first was heard last, or just after."""
    last_s = clock.at_s
    clock.at_s += 1.0
    task_0_ends(attempt, clock)
    assert vanished(attempt) == []
    clock.at_s += 9.0
    hears(attempt, "n2", clock, "hello")
    hears(attempt, "n2", clock)
    assert vanished(attempt) == []
    assert attempt.awaits_reports
    clock.at_s += 5.1
    assert vanished(attempt) == [2, 3]
    assert not attempt.awaits_reports
    assert [(e.at_s, e.exit_code) for e in attempt.vanished.values()] == [(last_s, None)] * 2
    assert last_s < attempt.exits[0].at_s


def test_an_srun_that_ends_or_reports_leaves_nobody_vanished(attempt: AttemptState, clock: FakeClock) -> None:
    """All have ended, and one line is late: a task that ends well is never reported."""
    task_0_ends(attempt, clock)
    goes(attempt, 1, clock)
    assert (vanished(attempt), attempt.awaits_reports) == ([], True)
    assert (vanished(attempt, ended=True), attempt.awaits_reports) == ([], False)
    clock.at_s += 6.0
    assert vanished(attempt) == [2, 3]
    prints(attempt, "srun: error: n2: task 1: Exited with exit code 3")
    attempt.confirm_exits()
    assert vanished(attempt) == []


def test_a_task_without_which_the_others_went_on_may_have_finished(attempt: AttemptState, clock: FakeClock) -> None:
    """It went a minute before their last step: they did not wait for it, nor die of it."""
    goes(attempt, 1, clock)
    clock.at_s += 60.0
    prints(attempt, "step 40/100 loss 1.0")
    task_0_ends(attempt, clock)
    clock.at_s += 6.0
    assert (vanished(attempt), attempt.awaits_reports) == ([], False)


def test_a_rank_of_a_lost_agent_that_lives_is_found_again(attempt: AttemptState, clock: FakeClock) -> None:
    """The next agent finds it: it has not vanished, and is watched as before."""
    task_0_ends(attempt, clock)
    clock.at_s += 9.0
    hears(attempt, "n2", clock, "hello")
    for rank in (2, 3):
        finds(attempt, rank)
    hears(attempt, "n2", clock)
    clock.at_s += 6.0
    assert (vanished(attempt), attempt.awaits_reports) == ([], False)
    assert len(attempt.fleet.alive) == 2
