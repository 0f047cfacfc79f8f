"""A silent job whose stacks stand still: one line says so, and nothing else is done."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import supervised

from slurm_robust.config.site import Config
from slurm_robust.core.model import Mode
from slurm_robust.supervise.incident.quiet_captures import QuietCaptures
from slurm_robust.supervise.lineage.attempt_start import AttemptStart
from slurm_robust.supervise.lineage.lineage_store import LineageStore

RECEIVES = [{"name": "MainThread", "main": True, "os_thread_id": 1, "frames": [["recvall", "/home/u/train.py", 27]]}]
_TORCH = "/opt/env/lib/python3.11/site-packages/torch/distributed"
_STORE = [
    ["<module>", "/home/u/train.py", 5],
    ["init_process_group", f"{_TORCH}/distributed_c10d.py", 1892],
    ["_create_c10d_store", f"{_TORCH}/rendezvous.py", 199],
]
STARTS = [{"name": "MainThread", "main": True, "os_thread_id": 1, "frames": _STORE}]
STORE_BYTES_PER_S = 4500
"""What the host of a store of torch's moves while it polls for its workers."""
SLEEPS = [{"name": "MainThread", "main": True, "os_thread_id": 1, "frames": [["main", "/home/u/serve.py", 7]]}]


class Mute:
    """A job that prints nothing; its real stacks are judged by the real votes."""

    def __init__(self, folder: Path, where: dict[int, str], mode: Mode = Mode.ACT, printed: str = "") -> None:
        nodes = tuple(f"n{rank + 1}" for rank in where)
        self.world = supervised.World(folder, config=Config(mode=mode), nodes=nodes)
        self.world.clock.at_s = 1000.0
        self.where = where
        output = folder / "job.out"
        self.attempt = self.world.attempt(paths=(output,))
        self.world.finds_ranks(len(where))
        output.write_text(printed)
        self.attempt.read_outputs()
        self.world.agents.stacks = {**supervised.WAITS, "sleeps": SLEEPS, "receives": RECEIVES, "starts": STARTS}
        self.world.agents.processes = self.processes
        start = AttemptStart(self.world.session, self.attempt, LineageStore(self.world.session))
        self.quiet = QuietCaptures(self.world.session, self.attempt, start)
        self.cpu_s = 1.0
        self.proven = 0

    def processes(self, rank: int) -> list[dict[str, Any]]:
        """Asleep at its place; a rank that works uses its processor."""
        works = self.where[rank] == "works"
        moved = int(self.world.clock.at_s * STORE_BYTES_PER_S) if self.where[rank] == "starts" else 1
        cpu_s = self.world.clock.at_s if works else 1.0
        process = {"pid": 100 + rank, "cpu_s": cpu_s, "io_bytes": moved, "net_bytes": 0}
        return [{**process, "state": "R" if works else "S", "stack": "sleeps" if works else self.where[rank]}]

    def passes(self, seconds: float) -> None:
        """Poll twice a second."""

        async def poll() -> None:
            until_s = self.world.clock.at_s + seconds
            while self.world.clock.at_s < until_s:
                self.world.clock.at_s += 0.5
                self.proven += await self.quiet.poll() is not None
                await asyncio.sleep(0)

        asyncio.run(poll())

    @property
    def said(self) -> list[str]:
        """What the job's output has of it."""
        return [e["text"] for e in self.world.story if "stood still" in e["text"] or "move again" in e["text"]]


def test_a_mute_job_that_stands_still_is_told_once(tmp_path: Path) -> None:
    """Since when, where the ranks stand, when something is done, what to type; also in the claim."""
    mute = Mute(tmp_path, {0: "waits", 1: "sleeps"})
    mute.passes(300)
    assert mute.said == []
    mute.passes(900)
    (line,) = mute.said
    assert line.startswith("the stacks of all 2 ranks have stood still since ")
    assert "(5 min" in line
    assert "rank 0 in all_reduce" in line
    assert "rank 1 in main (u/serve.py:7)" in line
    assert "acted on at" in line
    assert "srobust stacks 1. " in line
    claim = mute.world.job.claim
    assert claim.still_since_s == pytest.approx(1030, abs=1)
    assert claim.still.startswith("rank 0 in all_reduce")
    assert claim.suspected_at_s == 0, "it may be healthy"
    assert mute.proven == 0, "nothing more is done than before"


def test_after_a_few_lines_the_limit_is_that_of_the_start_up(tmp_path: Path) -> None:
    """Nothing tells yet how far lines are apart: the site's limit for steps does not count, and is not promised.

    A report of the training's progress leaves the standstill in the claim.
    """
    printed = "".join(f"step {n}/100 loss 1.0\n" for n in range(4))
    mute = Mute(tmp_path, {0: "receives", 1: "sleeps"}, printed=printed)
    assert mute.attempt.reports
    mute.passes(700)
    (line,) = mute.said
    at = time.strftime("%H:%M:%S", time.localtime(1000 + mute.world.session.settings.startup_limit_s))
    assert f"acted on at {at}" in line

    async def reports() -> None:
        mute.world.job.tell_progress()
        await asyncio.gather(*mute.world.job._tasks)

    still = mute.world.job.claim.still
    assert still
    asyncio.run(reports())
    assert mute.world.job.claim.still == still


def test_a_job_that_only_observes_says_that_nothing_will_be_done(tmp_path: Path) -> None:
    """Whatever is proven."""
    mute = Mute(tmp_path, {0: "waits", 1: "sleeps"}, mode=Mode.OBSERVE)
    mute.passes(600)
    assert "written down, and nothing is done (observe mode)" in mute.said[0]


def test_it_is_taken_back_when_a_rank_moves(tmp_path: Path) -> None:
    """Once, and the claim has it no more."""
    mute = Mute(tmp_path, {0: "waits", 1: "sleeps"})
    mute.passes(600)
    mute.where[1] = "waits"
    mute.passes(100)
    assert mute.said[1:] == ["the stacks of the ranks move again"]
    assert (mute.world.job.claim.still_since_s, mute.world.job.claim.still) == (0, "")


@pytest.mark.parametrize("where", [{0: "sleeps", 1: "sleeps"}, {0: "waits", 1: "works"}])
def test_a_program_that_only_sleeps_or_works_is_not_spoken_of(tmp_path: Path, where: dict[int, str]) -> None:
    """A service that waits for requests; and a training in which one rank works while the others wait for it."""
    mute = Mute(tmp_path, where)
    mute.passes(900)
    assert mute.said == []


def test_a_mute_hang_that_was_left_alone_and_ends_by_itself_is_suspected_no_more(tmp_path: Path) -> None:
    """Nothing but its stacks can show it: they are looked at meanwhile, and most ranks have to move."""
    mute = Mute(tmp_path, {0: "waits", 1: "sleeps"}, Mode.OBSERVE)
    mute.attempt.left_alone_at_s = mute.world.clock.at_s
    mute.attempt.quiet_until_s = mute.world.clock.at_s + 1800
    mute.world.job.claim = replace(mute.world.job.claim, suspected_at_s=mute.world.clock.at_s)
    mute.passes(200)
    mute.where[1] = "waits"
    mute.passes(100)
    assert mute.world.job.claim.suspected_at_s > 0, "one of two has moved"
    mute.where = {0: "sleeps", 1: "sleeps"}
    mute.passes(100)
    assert mute.world.job.claim.suspected_at_s == 0
    assert mute.world.kinds.count("cleared") == 1


@pytest.mark.parametrize("mode", [Mode.ACT, Mode.OBSERVE])
def test_a_job_that_hangs_in_its_first_steps_is_told(tmp_path: Path, mode: Mode) -> None:
    """Too few steps to know how long one takes (`supervise.min_steps`), behind a collective that is not known."""
    mute = Mute(tmp_path, {0: "receives", 1: "receives", 2: "sleeps"}, mode)
    mute.world.steps(1, ranks=3)
    mute.world.clock.at_s += 2.0
    mute.world.steps(2, ranks=3)
    began_s = mute.world.clock.at_s
    mute.passes(500)
    (line,) = mute.said
    assert "ranks 0-1 in recvall (u/train.py:27), rank 2 in main (u/serve.py:7)" in line
    at = time.strftime("%H:%M:%S", time.localtime(began_s + 1800))
    assert f"{'acted on' if mode is Mode.ACT else 'nothing is done (observe mode)'} at {at}" in line
    assert mute.world.job.claim.still_since_s > 0
    assert mute.proven == 0


def test_two_ranks_that_wait_by_sockets_of_their_own_are_told(tmp_path: Path) -> None:
    """No stack says that one waits for the other, but they stand at different places."""
    mute = Mute(tmp_path, {0: "receives", 1: "sleeps"})
    mute.world.steps(1, ranks=2)
    mute.world.clock.at_s += 2.0
    mute.world.steps(2, ranks=2)
    mute.passes(500)
    (line,) = mute.said
    assert "rank 0 in recvall (u/train.py:27), rank 1 in main (u/serve.py:7)" in line
    assert mute.proven == 0


@pytest.mark.parametrize("other", ["sleeps", "starts"])
def test_a_start_up_that_waits_for_a_rank_is_told_and_left_alone(tmp_path: Path, other: str) -> None:
    """The store is polled all the time. The others may yet come: nothing is done, also after an hour."""
    mute = Mute(tmp_path, {0: "starts", 1: other})
    mute.passes(3600)
    (line,) = mute.said
    assert "in _create_c10d_store (torch/distributed/rendezvous.py:199)" in line
    assert "nothing is done" in line
    assert mute.proven == 0
