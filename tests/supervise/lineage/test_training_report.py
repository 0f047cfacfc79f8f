"""The claim tells how the training gets on: with the first step, then once an interval, and it risks nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from supervised import World

from slurm_robust.marks import claim
from slurm_robust.marks.claim import Claim
from slurm_robust.supervise.agent.messages import from_agent
from slurm_robust.supervise.lineage.attempt_start import AttemptStart
from slurm_robust.supervise.lineage.lineage_store import LineageStore
from slurm_robust.supervise.lineage.training_report import TrainingReport, gpus_in
from slurm_robust.supervise.watch.attempt_state import AttemptState


class Told:
    """A job of two ranks, its report, and the claims that were written."""

    def __init__(self, folder: Path, previous: Claim | None = None, **more: Any) -> None:
        self.world = World(folder / "story", **more)
        self.world.job.previous = previous
        self.report = TrainingReport(self.world.session)
        self.begin()

    def begin(self) -> AttemptState:
        """Another attempt in the allocation."""
        attempt = self.world.attempt()
        self.report.begin(attempt, AttemptStart(self.world.session, attempt, LineageStore(self.world.session)))
        self.world.finds_ranks()
        return attempt

    def steps(self, *steps: int, each_s: float = 1.0, calm: bool = True) -> None:
        """Steps that all ranks make, each with a poll after it."""

        async def passing() -> None:
            for step in steps:
                self.world.clock.at_s += each_s
                for rank in range(2):
                    start = {"t": "marks", "n": f"n{rank + 1}", "rank": rank, "marks": {}, "layout": {}}
                    info = self.world.session.fleet.ranks[rank]
                    if info.first_step < 0:
                        self.world.session.receive(from_agent({**start, "first": [step, 0.0]}))
                self.world.steps(step)
                self.report.poll(calm=calm)
                await asyncio.gather(*self.world.job._tasks)

        asyncio.run(passing())

    @property
    def writes(self) -> int:
        """How often the Comment was written."""
        return len([act for act in self.world.slurm.acts if act.startswith("update")])

    @property
    def claimed(self) -> Mapping[str, float]:
        """What the claim says now."""
        found = claim.parse(self.world.slurm.state.jobs[1].comment)
        assert found is not None
        return found.progress


def test_the_first_step_is_told_at_once_and_the_others_once_an_interval(tmp_path: Path) -> None:
    """One writing in a minute, whose last step is that of the moment."""
    told = Told(tmp_path, environment={"SLURM_GPUS_ON_NODE": "8"})
    began_s = told.world.clock.at_s
    told.steps(1)
    assert told.writes == 1
    assert told.claimed == {
        "first": began_s + 1, "new": began_s + 1, "last": began_s + 1, "step": 1, "every": 60, "gpus": 16,
    }  # fmt: skip
    told.steps(*range(2, 60))
    assert told.writes == 1
    told.steps(*range(60, 182))
    assert told.writes == 4
    assert told.claimed["step"] == 181
    assert told.claimed["last"] == began_s + 181
    assert told.claimed["pace"] == 1


def test_a_job_that_stands_still_writes_nothing(tmp_path: Path) -> None:
    """Only steps are news."""
    told = Told(tmp_path)
    told.steps(1, *[2] * 100, each_s=10.0)
    assert told.writes == 2


def test_an_interval_of_zero_tells_the_first_step_only(tmp_path: Path) -> None:
    """And says so."""
    told = Told(tmp_path, supervise={"report_interval_s": 0.0})
    told.steps(*range(200), each_s=10.0)
    assert (told.writes, told.claimed["every"]) == (1, 0)


def test_while_an_incident_is_open_its_own_claims_tell_it(tmp_path: Path) -> None:
    """Nothing is written beside them; what they write has the newest progress."""
    told = Told(tmp_path)
    told.steps(1, 2, 3, each_s=100.0, calm=False)
    assert told.writes == 0
    asyncio.run(told.world.job.write_claim(state=claim.STATE_WANTS_REQUEUE, incident="i1", why="hang"))
    assert told.claimed["step"] == 3


def test_a_claim_that_asks_does_not_change_for_a_report(tmp_path: Path) -> None:
    """The daemon refuses a claim that has changed since it was read; a suspicion stays a suspicion."""
    told = Told(tmp_path)
    told.steps(1)

    async def both(**changes: Any) -> None:
        # The report is ordered first, and is written last.
        told.world.job.tell_progress()
        await told.world.job.write_claim(**changes)
        await asyncio.gather(*told.world.job._tasks)

    asyncio.run(both(state=claim.STATE_WANTS_REQUEUE, incident="i1", why="hang"))
    assert told.writes == 2
    asyncio.run(both(state=claim.STATE_WATCHING, suspected_at_s=5.0))
    assert told.writes == 3
    assert told.world.job.claim.suspected_at_s == 5.0


def test_a_restart_in_place_tells_when_it_has_caught_up(tmp_path: Path) -> None:
    """Its first step is an old one; its first new step comes later."""
    told = Told(tmp_path)
    told.steps(*range(100))
    told.begin()
    again_s = told.world.clock.at_s
    told.steps(*range(80, 120))
    assert (told.claimed["first"], told.claimed["new"]) == (again_s + 1, again_s + 21)


@pytest.mark.parametrize(("restart", "slow_s"), [(0, 7.0), (1, 0.0)])
def test_what_an_earlier_claim_tells(tmp_path: Path, restart: int, slow_s: float) -> None:
    """Sums go on for a supervisor that was started anew; how far the training came goes on after a requeue, too."""
    earlier = Claim(claim.STATE_WATCHING, "line", restart=0, progress={"step": 50.0, "slow": 7.0, "ckpt": 0.0})
    told = Told(tmp_path, replace(earlier, restart=0), job={"restart_count": restart})
    began_s = told.world.clock.at_s
    told.steps(*range(40, 60))
    assert told.report.table().get("slow", 0.0) == slow_s
    assert (told.claimed["first"], told.claimed["new"]) == (began_s + 1, began_s + 12)


def test_a_fault_of_ours_ends_the_reports_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is noted once; claims are written without progress."""
    told = Told(tmp_path)
    told.steps(1)
    monkeypatch.setattr(told.report, "_pace", None)
    told.steps(2, 3, 4, each_s=100.0)
    assert told.world.kinds.count("note") == 1
    assert "AttributeError" in told.world.text("note")
    assert asyncio.run(told.world.job.write_claim(state=claim.STATE_WANTS_REQUEUE, why="hang"))
    assert told.claimed == {}


def test_slurm_that_refuses_a_report_is_no_news(tmp_path: Path) -> None:
    """The next interval tries again."""
    told = Told(tmp_path)
    told.world.slurm.down = True
    told.steps(1)
    assert told.world.kinds == []
    told.world.slurm.down = False
    told.steps(*range(2, 70))
    assert told.claimed["step"] >= 60


@pytest.mark.parametrize(("text", "gpus"), [("8", 8), ("", 0), ("a100:8", 0), ("9" * 9, 0), ("-1", 0)])
def test_gpus_of_a_node(text: str, gpus: int) -> None:
    """Slurm's variable, where it is a number."""
    assert gpus_in({"SLURM_GPUS_ON_NODE": text}) == gpus
