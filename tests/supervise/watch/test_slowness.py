"""A slow machine is announced when two judgements agree, and nothing else is done."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from supervised import World

from slurm_robust.core.model import Verdict
from slurm_robust.localize.slow.timings_file import read_timings
from slurm_robust.localize.timings import StepTimings, Timing
from slurm_robust.supervise.watch import slowness
from slurm_robust.supervise.watch.slowness import Slowness


class Job:
    """Sixteen ranks on four nodes, and the story of their supervisor."""

    def __init__(self, folder: Path) -> None:
        self.world = World(folder / "story", layout={"dp": 16})
        self.path = folder / "story"
        attempt = self.world.attempt(layout={"dp": 16})
        self.fleet = attempt.fleet
        self.slowness = Slowness(self.world.session, attempt)
        self.step = 0

    def train(self, steps: int, slow: int | None) -> None:
        """So many more steps, with one rank a tenth slower."""
        for step in range(self.step, self.step + steps):
            for rank in range(16):
                jitter = (rank * 7 + step * 3) % 11 / 2000
                compute = (1.1 if rank == slow else 1.0) + jitter
                self.fleet.timings.add(Timing(rank, step, 1.3, compute, None, f"n{rank // 4}"))
        self.step += steps

    def judge(self, after_s: float = 100_000.0) -> None:
        """Let so much time pass; wait for the judgement that is due then."""
        self.world.clock.at_s += after_s

        async def wait() -> None:
            self.slowness.poll()
            if self.slowness._task is not None:
                await self.slowness._task

        asyncio.run(wait())
        self.slowness._task = None

    @property
    def story(self) -> list[dict[str, object]]:
        """Lines of the story."""
        return self.world.story


def test_two_judgements_that_agree_are_reported_once(tmp_path: Path) -> None:
    """The line names the node and says that nothing is done; its file says the same to `localize --timings`."""
    job = Job(tmp_path)
    for _ in range(4):
        job.train(30, slow=6)
        job.judge()
    (line,) = job.story
    assert line["kind"] == "slow"
    assert line["nodes"] == ["n1"]
    assert "nothing is done" in str(line["text"])
    read = read_timings(job.path / str(line["timings"]))
    assert read.problems == ()
    assert read.timings.layout == {"dp": 16}
    assert (len(read.timings.ranks), len(read.timings.steps)) == (16, 60)


def test_one_judgement_is_not_enough(tmp_path: Path) -> None:
    """A slowness that is gone at the second judgement is no news; nor are old steps seen twice."""
    job = Job(tmp_path)
    job.train(100, slow=6)
    job.judge()
    job.judge()
    job.train(100, slow=None)
    job.judge()
    assert job.story == []


def test_a_judgement_that_waits_for_a_busy_machine_does_not_put_off_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only its own work counts: on busy cores the first judgement once put off the second by two minutes."""
    job = Job(tmp_path)
    judge = slowness.judge_timings

    def waits(timings: StepTimings) -> Verdict:
        job.world.clock.at_s += 10.0
        return judge(timings)

    monkeypatch.setattr(slowness, "judge_timings", waits)
    job.train(30, slow=6)
    job.judge()
    job.train(30, slow=6)
    job.judge(after_s=job.world.session.settings.slowness_interval_s)
    (line,) = job.story
    assert line["nodes"] == ["n1"]


def test_few_steps_are_not_judged(tmp_path: Path) -> None:
    """No rank tells its times: nothing is begun."""
    job = Job(tmp_path)
    job.judge()
    job.train(3, slow=6)
    job.judge()
    assert job.story == []


def test_a_fault_of_ours_is_reported_and_ends_the_judgements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervision goes on."""

    def fails(_: object) -> None:
        time.sleep(0)
        raise RuntimeError("broken")

    monkeypatch.setattr(slowness, "judge_timings", fails)
    job = Job(tmp_path)
    for _ in range(3):
        job.train(30, slow=6)
        job.judge()
    (line,) = job.story
    assert line["kind"] == "note"
    assert "broken" in str(line["text"])


def test_slow_ranks_that_name_no_machine_are_told_apart_from_none(tmp_path: Path) -> None:
    """Six of sixteen ranks are slow: too many to be outliers. Two judgements say so; a third one takes it back."""
    job = Job(tmp_path)

    def train(slow: int) -> None:
        for step in range(job.step, job.step + 30):
            for rank in range(16):
                compute = (1.3 if rank < slow else 1.0) + (rank * 7 + step * 3) % 11 / 2000
                job.fleet.timings.add(Timing(rank, step, 1.6, compute, None, f"n{rank // 4}"))
        job.step += 30

    unnamed = []
    for slow in (6, 6, 0, 0, 0, 0):
        train(slow)
        job.judge()
        unnamed.append(job.slowness.unnamed)
    assert unnamed[0] == unnamed[-1] == ""
    assert "6 of 16 ranks are slower than their peers" in unnamed[1]
    assert job.story == [], "nobody is named"
