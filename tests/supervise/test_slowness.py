"""A slow machine is announced when two looks agree, and nothing else is done."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from slurm_robust.config import Config
from slurm_robust.localize.slow.timings import Timing
from slurm_robust.localize.slow.timings_file import read_timings
from slurm_robust.supervise.incident.incident_folder import Folder
from slurm_robust.supervise.incident.investigation import Scene
from slurm_robust.supervise.watch import slowness
from slurm_robust.supervise.watch.fleet import Fleet
from slurm_robust.supervise.watch.slowness import Slowness


class Job:
    """Sixteen ranks on four nodes, and the story of their supervisor."""

    def __init__(self, folder: Path) -> None:
        self.fleet = Fleet("a")
        self.path = folder / "story"
        present = SimpleNamespace(fleet=self.fleet, scene=Scene((), {"dp": 16}))
        self.supervisor = SimpleNamespace(config=Config(), folder=Folder(self.path, quiet=True), present=present)
        self.looks = Slowness(self.supervisor, 0.0)  # type: ignore[arg-type]
        self.now_s = 0.0
        self.step = 0

    def train(self, steps: int, slow: int | None) -> None:
        """So many more steps, with one rank a tenth slower."""
        for step in range(self.step, self.step + steps):
            for rank in range(16):
                jitter = (rank * 7 + step * 3) % 11 / 2000
                compute = (1.1 if rank == slow else 1.0) + jitter
                self.fleet.timings.add(Timing(rank, step, 1.3, compute, None, f"n{rank // 4}"))
        self.step += steps

    def look(self) -> None:
        """Let the next look come due, and end."""
        self.now_s += 100_000.0

        async def wait() -> None:
            self.looks.due(self.now_s)
            if self.looks._look is not None:
                await self.looks._look

        asyncio.run(wait())
        self.looks._look = None

    @property
    def told(self) -> list[dict[str, object]]:
        """Lines of the story."""
        path = self.path / "story.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_two_looks_that_agree_are_told_once(tmp_path: Path) -> None:
    """The line names the node and says that nothing is done; its file says the same to `localize --timings`."""
    job = Job(tmp_path)
    for _ in range(4):
        job.train(30, slow=6)
        job.look()
    (line,) = job.told
    assert line["kind"] == "slow"
    assert line["nodes"] == ["n1"]
    assert "nothing is done" in str(line["text"])
    read = read_timings(job.path / str(line["timings"]))
    assert read.problems == ()
    assert read.timings.layout == {"dp": 16}
    assert (len(read.timings.ranks), len(read.timings.steps)) == (16, 60)


def test_one_look_is_not_enough(tmp_path: Path) -> None:
    """A slowness that is gone at the second look is no news; nor are old steps seen twice."""
    job = Job(tmp_path)
    job.train(100, slow=6)
    job.look()
    job.look()
    job.train(100, slow=None)
    job.look()
    assert job.told == []


def test_few_steps_are_not_looked_at(tmp_path: Path) -> None:
    """No rank tells its times: nothing is begun."""
    job = Job(tmp_path)
    job.look()
    job.train(3, slow=6)
    job.look()
    assert job.told == []


def test_a_fault_of_ours_is_told_and_ends_the_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervision goes on."""

    def fails(_: object) -> None:
        time.sleep(0)
        raise RuntimeError("broken")

    monkeypatch.setattr(slowness, "judge_timings", fails)
    job = Job(tmp_path)
    for _ in range(3):
        job.train(30, slow=6)
        job.look()
    (line,) = job.told
    assert line["kind"] == "note"
    assert "broken" in str(line["text"])
