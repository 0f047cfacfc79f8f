"""A job's exclusions that are ours end when their reason does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from daemon_world import KilledError, World
from fake_slurm import FakeSlurm

from slurm_robust.config.site import Config, parse
from slurm_robust.core.model import JobRef
from slurm_robust.daemon.store.journal import CLOSED
from slurm_robust.slurm.client import Job
from slurm_robust.slurm.values import expand


def test_what_is_given_back_is_done_after_it_was_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call to Slurm takes its time: `srobust incidents` would show a negative one."""
    world = full(tmp_path, recheck_exit="1:0")
    slurm, ask = world.slurm, world.slurm.job

    def slowly(ref: JobRef) -> Job | None:
        slurm.now_s += 0.05
        return ask(ref)

    monkeypatch.setattr(slurm, "job", slowly)
    world.claim(1, ("n3",))
    world.run(300)
    slurm.resume("n3")
    world.run(20)
    rows = [a for row in world.journal.incidents() for a in world.journal.actions(row.key)]
    lifted = [a for a in rows if a.kind == "lift_exclude" and a.done_at_s]
    assert lifted
    assert all(a.done_at_s > (a.called_at_s or 0.0) for a in lifted if a.done_at_s)
    world.journal.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Four nodes; job 1 has three of them."""
    made = World(tmp_path, FakeSlurm(4), Config())
    made.slurm.run_job(("n1", "n2", "n3"))
    made.run(6)
    yield made
    made.journal.close()


def excluded(world: World) -> set[str]:
    """What job 1 leaves out."""
    return set(expand(world.slurm.state.jobs[1].exclude or ""))


def test_second_recovery_gives_back_what_the_first_left_out(world: World) -> None:
    """n3 passed its recheck: the second recovery does not take it for the user's own, and may use it again."""
    world.claim(1, ("n3",))
    world.run(60)
    assert excluded(world) == {"n3"}
    world.claim(1, ("n2",), incident="i2")
    world.run(60)
    job = world.slurm.state.jobs[1]
    assert (job.state, set(job.nodes), job.restart_count) == ("RUNNING", {"n1", "n3", "n4"}, 2)
    assert excluded(world) == {"n2"}


def full(tmp_path: Path, nodes: int = 3, recheck_exit: str = "0:0") -> World:
    """Job 1 has the first three of so many nodes."""
    made = World(tmp_path, FakeSlurm(nodes, recheck_exit), Config())
    made.slurm.run_job(("n1", "n2", "n3"))
    made.run(6)
    return made


def runs_again(world: World) -> bool:
    """Job 1 is back, on three nodes, and leaves nothing out for ever."""
    job = world.slurm.state.jobs[1]
    return (job.state, len(job.nodes), job.restart_count) == ("RUNNING", 3, 1)


def test_two_suspects_and_one_standby(tmp_path: Path) -> None:
    """The first that passes its recheck completes the job; it does not wait for ever beside healthy nodes."""
    world = full(tmp_path, 4)
    world.claim(1, ("n2", "n3"))
    world.run(30)
    assert runs_again(world)
    seats = [a for a in world.journal.actions(world.journal.incidents()[0].key) if a.kind == "create_seat"]
    assert [bool(seat.done_at_s) for seat in seats] == [True]
    assert not world.slurm.state.reservations
    world.journal.close()


def test_recheck_that_passes_while_the_job_still_ends(tmp_path: Path) -> None:
    """The other suspect, with another's job on it, holds up the end: both are given back when the job waits."""
    world = full(tmp_path)
    world.slurm.run_job(("n3",), user="ben")
    world.slurm.stuck.add("n3")
    world.run(3)
    world.claim(1, ("n2", "n3"))
    world.run(40)
    assert world.slurm.state.jobs[1].completing
    world.slurm.stuck.clear()
    world.slurm.state.jobs[2] = replace(world.slurm.state.jobs[2], state="COMPLETED", nodes=())
    world.run(40)
    assert runs_again(world)
    world.journal.close()


def test_daemon_killed_right_after_the_node_left_its_quarantine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next life of the daemon sees the same: a job that waits for a node that nothing stands against."""
    world = full(tmp_path)
    ledger = world.daemon.ledger
    leave = ledger.leave

    def and_dies(node: str) -> None:
        leave(node)
        raise KilledError

    monkeypatch.setattr(ledger, "leave", and_dies)
    world.claim(1, ("n3",))
    world.run(40)
    assert world.daemon.ledger is not ledger
    assert runs_again(world)
    world.journal.close()


@pytest.mark.parametrize("after_s", [30, 300])
def test_node_that_failed_its_recheck_and_was_repaired(tmp_path: Path, after_s: int) -> None:
    """A person resumes it, while the seat still stands or long after it was let go: the job starts on it."""
    world = full(tmp_path, recheck_exit="1:0")
    world.claim(1, ("n3",))
    world.run(after_s)
    assert excluded(world) == {"n3"}
    assert (world.journal.incidents()[0].state == CLOSED) is (after_s == 300)
    world.slurm.resume("n3")
    world.run(30)
    assert runs_again(world)
    world.journal.close()


def test_the_users_own_exclusions_stay(tmp_path: Path) -> None:
    """Also for a job that waits: n4 is fit, and the user's to leave out."""
    world = full(tmp_path, 4)
    world.slurm.state.jobs[1] = replace(world.slurm.state.jobs[1], exclude="n4")
    world.claim(1, ("n3",))
    world.run(40)
    assert runs_again(world)
    assert excluded(world) == {"n4"}
    world.journal.close()


def test_two_jobs_that_accuse_each_others_node_do_not_keep_both_from_each_other(tmp_path: Path) -> None:
    """The link between two nodes that both share is bad: each waits for the node that the other's closed seat has."""
    config = parse("quarantine: {max_per_user_hour: 0}")
    world = World(tmp_path, FakeSlurm(2), config)
    for user in ("ann", "ben"):
        world.slurm.run_job(("n1", "n2"), user=user)
    world.run(6)
    world.claim(1, ("n2",))
    world.claim(2, ("n1",))
    world.run(70)
    assert world.slurm.state.jobs[1].nodes == ("n1", "n2")
    assert "running" in world.outcomes()
    world.journal.close()
