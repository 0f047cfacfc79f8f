"""A requeue is wanted: whatever becomes of the daemon and of slurmctld, the job is requeued, or says why not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fake_slurm import FakeSlurm

from slurm_robust.claim import Answer, Claim, render
from slurm_robust.config import Config, SuperviseConfig
from slurm_robust.model import Plan, Road
from slurm_robust.slurm.errors import SlurmRefusedError, SlurmTimeoutError
from slurm_robust.supervise.incident.incident_folder import Folder
from slurm_robust.supervise.incident.incident_page import Record
from slurm_robust.supervise.job import JobContext
from slurm_robust.supervise.recover.step_control import clean, requeue
from slurm_robust.supervise.watch.agents import Agents
from slurm_robust.supervise.watch.fleet import Fleet

CONFIG = Config(supervise=SuperviseConfig(answer_timeout_s=0.3, requeue_timeout_s=0.6))


class Stopped:
    """Agents that are stopped at once."""

    async def stop(self) -> None:
        """Nothing to do."""


async def wants(slurm: FakeSlurm, folder: Folder, answer: Answer | None = None) -> int:
    """A job of two nodes asks for a requeue without n2, and `answer` stands in its AdminComment."""
    job = slurm.run_job(("n1", "n2"))
    if answer is not None:
        job = slurm.state.jobs[1] = replace(job, admin_comment=render(answer))
    context = JobContext(slurm, "fake", job, None, Claim("watching", "line"))
    record = cast("Record", SimpleNamespace(id="i1", times={}))
    plan = Plan(Road.SEAT, "rank 3 is stopped", evict=("n2",))
    agents = cast("Agents", Stopped())
    return await requeue(context, None, agents, folder, CONFIG, record=record, verdict=None, plan=plan)


def kinds(folder: Folder) -> list[str]:
    """What the story tells, in order."""
    return [text.split('"kind":')[1].split('"')[1] for text in (folder.path / "story.jsonl").read_text().splitlines()]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """The incident folder."""
    return Folder(tmp_path / "slurm-robust-1")


def test_a_daemon_that_dies_after_its_yes_does_not_cost_the_job(folder: Folder) -> None:
    """Accepted, and then nobody: the job requeues itself, instead of ending with 75 as if it had failed."""
    slurm = FakeSlurm()
    asyncio.run(wants(slurm, folder, Answer("accepted", "i1", why="hangs", road="seat")))
    assert "requeue 1 without n2" in slurm.acts
    assert slurm.state.jobs[1].restart_count == 1
    assert kinds(folder)[:3] == ["claimed", "accepted", "unanswered"]


@pytest.mark.parametrize("answer", [None, Answer("refused", "i1", why="seat.max_active")])
def test_no_answer_and_a_refusal_lead_to_a_plain_requeue(folder: Folder, answer: Answer | None) -> None:
    """As ever."""
    slurm = FakeSlurm()
    asyncio.run(wants(slurm, folder, answer))
    assert "requeue 1 without n2" in slurm.acts


def test_a_controller_that_is_away_does_not_cost_the_job(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The requeue is tried again until slurmctld hears it; the wrapper does not return meanwhile."""
    slurm = FakeSlurm()
    hears, calls = slurm.requeue, []

    def deaf_at_first(job: object, *, without: Sequence[str] = ()) -> None:
        calls.append(job)
        if len(calls) == 1:
            raise SlurmTimeoutError("requeue job 1", "no answer within 10 s")
        hears(job, without=without)  # type: ignore[arg-type]

    monkeypatch.setattr(slurm, "requeue", deaf_at_first)
    monkeypatch.setattr("slurm_robust.supervise.recover.requeue_wait._LOOK_S", 0.01)
    asyncio.run(wants(slurm, folder))
    assert slurm.state.jobs[1].restart_count == 1


def test_a_refusal_of_slurm_is_said_and_ends_the_waiting(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not requeueable: exit 75, with Slurm's words in the story."""
    slurm = FakeSlurm()

    def no(job: object, *, without: Sequence[str] = ()) -> None:
        raise SlurmRefusedError("requeue job 1", "Requested operation is presently disabled")

    monkeypatch.setattr(slurm, "requeue", no)
    assert asyncio.run(wants(slurm, folder)) == 75
    assert "presently disabled" in (folder.path / "story.jsonl").read_text()


def test_a_requeue_that_is_on_its_way_is_not_asked_for_twice(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that seemed unheard, then a refusal because it was heard: the wrapper waits to be ended."""
    slurm = FakeSlurm()
    hears, calls = slurm.requeue, []

    def late(job: object, *, without: Sequence[str] = ()) -> None:
        calls.append(job)
        hears(job, without=without)  # type: ignore[arg-type]
        raise SlurmTimeoutError("requeue job 1", "no answer within 10 s")

    monkeypatch.setattr(slurm, "requeue", late)
    monkeypatch.setattr("slurm_robust.supervise.recover.requeue_wait._LOOK_S", 0.01)
    asyncio.run(wants(slurm, folder))
    assert "could not be requeued" not in (folder.path / "story.jsonl").read_text()
    assert slurm.state.jobs[1].restart_count == 1


class OneComesLate:
    """Agents on n1 and n2; that of n2 is started anew, and has not heard the first two words."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.told: list[float] = []

    def tell(self, kind: str, **said: Any) -> None:
        """An order; n1 answers the first, n2 the third."""
        assert kind == "clean"
        self.told.append(said["timeout_s"])
        if len(self.told) in (1, 3):
            self.fleet.feed({"t": "clean", "n": f"n{(len(self.told) + 1) // 2}", "id": said["id"], "left": []}, 1.0)


def test_an_agent_that_was_started_anew_is_told_to_clean_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch step ended just then: its node is as clean as any, and is not blamed for a word that it never heard."""
    monkeypatch.setattr("slurm_robust.supervise.recover.step_control._TELL_AGAIN_S", 0.05)
    fleet = Fleet("7.0.1")
    agents = OneComesLate(fleet)
    dirty = asyncio.run(clean(cast("Agents", agents), fleet, ["n1", "n2"], SuperviseConfig(kill_clean_timeout_s=2.0)))
    assert dirty == {}
    assert 2.0 >= agents.told[0] > agents.told[1] > agents.told[2], "the same end for all"
