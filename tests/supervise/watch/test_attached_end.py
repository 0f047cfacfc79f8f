"""When does a watch over somebody else's training end?"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from supervised import World

from slurm_robust.localize.evidence import RankExit
from slurm_robust.supervise.launch.attached_step import AttachedStep
from slurm_robust.supervise.watch.attached_end import AttachedEnd


class Watch:
    """A watch beside a job whose rank is there; its agents are not."""

    def __init__(self, folder: Path, attached: AttachedStep | None = None) -> None:
        self.world = World(folder, attached=attached)
        self.attempt = self.world.attempt()
        self.world.finds_ranks(1)
        self.end = AttachedEnd(self.world.session)

    def reached(self) -> bool:
        """One poll, two seconds after the last."""
        self.world.clock.at_s += 2.0
        return asyncio.run(self.end.reached(self.attempt))


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    """Of all of the job."""
    return Watch(tmp_path)


def test_it_ends_with_the_job(watch: Watch) -> None:
    """Slurm knows it no more, or as anything but running."""
    assert not watch.reached()
    watch.world.slurm.cancel(watch.world.job.ref)
    assert watch.reached()
    watch.world.slurm.state.jobs.clear()
    assert watch.reached()


def test_an_srun_that_waits_for_us_is_no_end(tmp_path: Path) -> None:
    """Its step has failed, and the script goes on only when we have decided."""
    step = AttachedStep("0")
    step._received = "ended 137\n"
    watch = Watch(tmp_path, step)
    watch.world.slurm.cancel(watch.world.job.ref)
    assert not watch.reached()


def test_a_cluster_that_is_gone_is_not_watched_for_ever(watch: Watch) -> None:
    """An outage is waited out; after an hour without anybody's word the watch ends, and says so."""
    slurm, clock = watch.world.slurm, watch.world.clock
    slurm.down = True
    assert not watch.reached()
    clock.at_s += 3500.0
    assert not watch.reached()
    watch.world.agents.present = True
    clock.at_s += 3600.0
    assert not watch.reached(), "agents answer"
    watch.world.agents.present = False
    clock.at_s += 3500.0
    assert not watch.reached()
    clock.at_s += 100.0
    assert watch.reached()
    assert "this watch ends" in watch.world.text("note")


def test_a_step_that_failed_is_told_with_the_rank_that_ended_first(tmp_path: Path) -> None:
    """Where srun does not wait for us, as in a job that may not be requeued, that is all that anybody says."""
    step = AttachedStep("0")
    watch = Watch(tmp_path, step)
    watch.attempt.exits = {1: RankExit(1, "n2", 8.0, exit_code=1), 0: RankExit(0, "n1", 7.0, signal=9)}
    step._gone = True
    asyncio.run(watch.end.report(watch.attempt))
    said = "srun has ended, after rank 0 on n1 had ended by signal 9; no attempt follows"
    assert watch.world.text("finished") == said
