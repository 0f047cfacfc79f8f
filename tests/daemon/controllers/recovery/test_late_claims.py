"""Claims that nobody answered in time, against a simulated Slurm: the daemon was away, or could write nothing down."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from daemon_world import World
from fake_slurm import FakeSlurm
from snapshots import published

from slurm_robust.config.site import parse
from slurm_robust.core.model import JobRef, Mode
from slurm_robust.daemon.api.needs import needs
from slurm_robust.marks.claim import Claim, parse_answer, render
from slurm_robust.slurm.client import PastRun
from slurm_robust.slurm.values import expand

Make = Callable[..., World]
FIVE = ("n1", "n2", "n3", "n4", "n5")
NO_POOL = "standby: {size: 0}"


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Make]:
    """Makes a world of six nodes whose daemon has read everything once."""
    worlds: list[World] = []

    def make(text: str = "standby: {size: 1}", mode: Mode = Mode.ACT) -> World:
        world = World(tmp_path / str(len(worlds)), FakeSlurm(6), parse(text), mode)
        worlds.append(world)
        world.run(8)
        return world

    yield make
    for world in worlds:
        world.journal.close()


def watched(world: World, nodes: tuple[str, ...] = FIVE) -> int:
    """A job that the daemon has seen at work."""
    number = world.slurm.run_job(nodes).ref.job_id
    said(world, number, Claim("watching", f"line-{number}"))
    world.run(6)
    return number


def said(world: World, number: int, claim: Claim) -> None:
    """The job writes into its Comment."""
    world.slurm.state.jobs[number] = replace(world.slurm.state.jobs[number], comment=render(claim))


def requeues_itself(world: World, number: int, evict: tuple[str, ...], away_s: float = 74.0) -> None:
    """Nobody answers the job's claim: it is requeued plainly without its suspects, while no daemon looks."""
    ref = JobRef(number)
    world.claim(number, evict, conclusion="culprit", grade="strong")
    world.slurm.requeue(ref)
    world.slurm.pass_s(1)
    world.slurm.update_job(ref, exclude=",".join(evict))
    for _ in range(int(away_s)):
        world.slurm.pass_s(1)


def held(world: World) -> set[str]:
    """Nodes that a quarantine keeps from other jobs."""
    kept = [r.nodes for r in world.slurm.state.reservations.values() if "quarantine" in r.name]
    return {name for nodes in kept for name in expand(nodes)}


@pytest.mark.parametrize("partition", ["main", "other,main"])
def test_the_suspect_is_checked_and_the_job_gets_the_standby_node(made: Make, partition: str) -> None:
    """74 s without a daemon: the one that starts takes the claim up, and does not wait for Slurm's own 121 s."""
    world = made()
    number = watched(world)
    requeues_itself(world, number, ("n2",))
    jobs = world.slurm.state.jobs
    jobs[number] = replace(jobs[number], partition=partition)
    assert world.slurm.state.jobs[number].state == "PENDING"
    world.live()
    world.run(12)
    job = world.slurm.state.jobs[number]
    assert (job.state, set(job.nodes)) == ("RUNNING", {"n1", "n3", "n4", "n5", "n6"})
    row = next(r for r in world.journal.incidents() if r.job_id == number)
    assert (row.incident.id, row.attempt.restart_count, row.state) == ("i1", 0, "running")
    assert any(a.kind == "recheck" and a.target == "n2" and a.calls for a in world.journal.actions(row.key))
    answer = parse_answer(job.admin_comment)
    assert answer is not None
    assert (answer.incident, answer.state) == ("i1", "accepted")
    said(world, number, Claim("watching", f"line-{number}", 1, "i1", times={"first_new_step": world.slurm.now_s}))
    world.run(30)
    assert world.outcomes() == ["resumed"]
    assert not held(world)
    assert not [a for a in world.slurm.acts if a.startswith("requeue")][1:], "the job is not requeued a second time"


def test_a_job_that_runs_again_only_has_its_suspect_checked(made: Make) -> None:
    """Its first new step closes the incident, as that of a claim which was answered."""
    world = made()
    number = watched(world, ("n1", "n2"))
    requeues_itself(world, number, ("n2",), away_s=130)
    job = world.slurm.state.jobs[number]
    assert job.state == "RUNNING"
    world.live()
    world.run(4)
    assert held(world) == {"n2"}
    assert world.slurm.state.jobs[number].nodes == job.nodes
    said(world, number, Claim("watching", f"line-{number}", 1, "i1", times={"first_new_step": world.slurm.now_s}))
    world.run(30)
    assert world.outcomes() == ["resumed"]
    assert not held(world), "it passed its check"


def test_what_the_next_attempt_carries_on_is_read_too(made: Make) -> None:
    """The next attempt's wrapper has overwritten the Comment before the daemon was there: it repeats the claim."""
    world = made()
    number = watched(world, ("n1", "n2"))
    requeues_itself(world, number, ("n2",), away_s=130)
    times = {"first_new_step": world.slurm.now_s}
    again = Claim(
        "watching", f"line-{number}", 1, "i1", evict=("n2",), asked=0, grade="strong", why="hang", times=times
    )
    said(world, number, again)
    world.live()
    world.run(4)
    assert held(world) == {"n2"}
    assert world.outcomes() == ["resumed"]
    world.run(60)
    assert len(world.journal.incidents()) == 1


def test_a_claim_may_still_name_only_nodes_on_which_the_job_ran(made: Make) -> None:
    """The text is the user's own, also on a pending job."""
    world = made(NO_POOL)
    number = watched(world, ("n1", "n2"))
    requeues_itself(world, number, ("n5",))
    world.live()
    world.run(10)
    assert not held(world)
    assert world.outcomes() == ["refused"]


def test_where_an_attempt_ran_is_asked_of_the_accounting(made: Make) -> None:
    """A daemon that never saw the attempt believes slurmdbd; without it, it says that it does not know."""
    for known in (True, False):
        world = made(NO_POOL)
        number = world.slurm.run_job(("n1", "n2")).ref.job_id
        requeues_itself(world, number, ("n2",))
        job, start_at_s = world.slurm.state.jobs[number], int(world.slurm.now_s) - 300
        world.slurm.state.jobs[number] = replace(job, submit_at_s=start_at_s + 226)
        if known:
            who = (number, str(number), "fake", "ann", "acct", "train", "main", "n[1-2]", 2, 0)
            times = (start_at_s, start_at_s, start_at_s, start_at_s + 226)
            world.slurm.past.append(PastRun(*who, *times, "REQUEUED", "0:0"))
        world.live()
        world.run(3)
        assert held(world) == ({"n2"} if known else set())
        if not known:
            row = world.journal.incidents()[0]
            assert (row.state, row.outcome) == ("closed", "refused")
            assert "where attempt 0 ran" in row.reason


def test_claims_that_are_written_again_and_again_cost_few_calls(made: Make) -> None:
    """The Comment is its user's; the accounting may take seconds for each question."""
    world = made(NO_POOL)
    asked: list[float] = []
    past_runs = world.slurm.past_runs
    world.slurm.past_runs = lambda *a, **k: (asked.append(0), past_runs(*a, **k))[1]  # type: ignore[assignment,method-assign]
    numbers = [world.slurm.run_job(("n1",)).ref.job_id for _ in range(3)]
    for number in numbers:
        requeues_itself(world, number, ("n1",), away_s=1)
        job = world.slurm.state.jobs[number]
        world.slurm.state.jobs[number] = replace(job, submit_at_s=int(world.slurm.now_s))
    for look in range(40):
        for number in numbers:
            said(world, number, Claim("wants", "l", restart=0, incident=f"i{look}", evict=("n1",)))
        world.run(1)
    assert 1 <= len(asked) <= 15


def test_an_answered_claim_is_not_read_again(made: Make) -> None:
    """Not by a daemon that has lost its journal either: the answer stands in AdminComment."""
    world = made(NO_POOL)
    number = watched(world, ("n1", "n2"))
    requeues_itself(world, number, ("n2",), away_s=20)
    answer = '[[srobust:1 {"state":"refused","incident":"i1"}]]'
    world.slurm.state.jobs[number] = replace(world.slurm.state.jobs[number], admin_comment=answer)
    world.live()
    world.run(10)
    assert world.outcomes() == []
    assert not held(world)


def test_observe_mode_only_writes_it_down(made: Make) -> None:
    """As with a claim that is read in time."""
    world = made(NO_POOL, Mode.OBSERVE)
    number = watched(world, ("n1", "n2"))
    requeues_itself(world, number, ("n2",), away_s=20)
    before = len(world.slurm.acts)
    world.live()
    world.run(10)
    assert world.outcomes() == ["observed"]
    assert world.slurm.acts[before:] == []


def test_weak_evidence_takes_no_node_out_late_either(made: Make) -> None:
    """The bounds on claims are the same."""
    world = made(NO_POOL)
    number = watched(world, ("n1", "n2"))
    requeues_itself(world, number, ("n2",), away_s=20)
    weak = Claim("wants", f"line-{number}", 0, "i1", evict=("n2",), grade="weak")
    said(world, number, weak)
    world.live()
    world.run(10)
    assert not held(world)
    assert len(world.journal.incidents()) == 1
    said_so = world.journal.db.execute("SELECT text FROM events WHERE what = 'claim.suspect_kept'").fetchall()
    assert [row["text"].partition(":")[0] for row in said_so] == [f"job {number}"]


def test_a_full_disk_loses_no_claim(made: Make) -> None:
    """While nothing can be written the job helps itself; as soon as there is space, its claim is read."""
    world = made(NO_POOL)
    number = watched(world, ("n1", "n2"))
    world.journal.db.execute("PRAGMA query_only = ON")
    world.claim(number, ("n2",), conclusion="culprit", grade="strong")
    failing(world, 5)
    world.slurm.requeue(JobRef(number))
    failing(world, 5)
    world.slurm.update_job(JobRef(number), exclude="n2")
    failing(world, 20)
    world.journal.db.execute("PRAGMA query_only = OFF")
    world.run(10)
    assert [r.incident.id for r in world.journal.incidents()] == ["i1"]
    assert any(a.kind == "recheck" and a.calls for a in world.journal.actions(world.journal.incidents()[0].key))


def test_refusals_on_a_full_disk_do_not_use_up_the_jobs_share(made: Make) -> None:
    """A refusal that could not be written down is written down once there is space."""
    world = made(NO_POOL)
    number = watched(world, ("n1", "n2"))
    world.journal.db.execute("PRAGMA query_only = ON")
    world.claim(number, ("n5",))
    failing(world, 30)
    world.journal.db.execute("PRAGMA query_only = OFF")
    world.run(3)
    assert world.outcomes() == ["refused"]


def failing(world: World, seconds: int) -> None:
    """Time passes, and each poll of the daemon fails as on a full disk."""

    async def passing() -> None:
        for _ in range(seconds * 2):
            world.slurm.pass_s(0.5)
            try:
                await world.daemon._poll()
            except sqlite3.OperationalError:
                continue

    asyncio.run(passing())


def test_status_says_which_nodes_a_waiting_job_leaves_out(made: Make) -> None:
    """And why: a job that waits for nodes beside an idle one must not be a riddle."""
    world = made(NO_POOL)
    number = watched(world)
    world.slurm.run_job(("n6",), user="ben")
    world.slurm.recheck_ends_s = 1e6
    requeues_itself(world, number, ("n2",), away_s=20)
    world.live()
    world.run(8)
    row = published(world.daemon)["waiting"][0]
    assert row["job"] == str(number)
    assert row["left_out"] == {"n2": "in quarantine"}
    world.run(150)
    assert world.outcomes() == ["not_started"], "its seat is not kept for ever"
    assert published(world.daemon)["waiting"][0]["left_out"] == {"n2": "in quarantine"}
    world.slurm.recheck_ends_s = 0
    world.run(30)
    assert world.slurm.state.jobs[number].state == "RUNNING", "the node that passed its check is given back"


def test_status_says_what_to_type_for_an_exclusion_that_nobody_ends(made: Make) -> None:
    """A job that excluded nodes itself, by a claim that was refused: the daemon does not change it."""
    world = made(NO_POOL)
    number = watched(world)
    world.slurm.run_job(("n6",), user="ben")
    requeues_itself(world, number, ("n2",), away_s=20)
    said(world, number, Claim("wants", f"line-{number}", 0, "i1", evict=("n2", "n6")))
    world.slurm.pass_s(130)
    world.live()
    world.run(12)
    assert world.outcomes() == ["refused"]
    state = published(world.daemon)
    assert state["waiting"][0]["left_out"] == {"n2": "fit"}
    assert f"scontrol update JobId={number} ExcNodeList=" in " ".join(needs(state, state["at_s"]))
    nodes = world.slurm.state.nodes
    for change, word in (
        ({"extra": "[[srobust-full v=1 at=1 : /scratch]]"}, "its disk is full"),
        ({"flags": frozenset(("DRAIN",))}, "out of service"),
    ):
        before = nodes["n2"]
        nodes["n2"] = replace(before, **change)
        world.run(70)
        state = published(world.daemon)
        assert state["waiting"][0]["left_out"] == {"n2": word}
        assert "ExcNodeList=" not in " ".join(needs(state, state["at_s"]))
        nodes["n2"] = before
