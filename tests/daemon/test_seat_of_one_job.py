"""A seat is for one job: no other job of its user gets into it, and one that does costs that user's claims a day."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from daemon_world import World, worlds
from snapshots import published

from slurm_robust.core.model import JobRef
from slurm_robust.daemon.api.needs import needs
from slurm_robust.daemon.controllers.breaker import request_admit
from slurm_robust.marks.claim import parse_answer
from slurm_robust.slurm.client import Job, Reservation
from slurm_robust.slurm.values import expand

DAY_S = 86400.0
ROOM = "quarantine: {max_per_user_hour: 0}\nseat: {max_active: 1}"
"""Suspects stay in service, so that only the seat is looked at; one open recovery would keep all others from theirs."""


class Attacked(World):
    """A world in which Ann's second job stands ready: it is submitted into her first job's seat as soon as it can."""

    entered = 0
    hides: str | None = None
    """What it names as its reservation as soon as it runs."""

    def submit(self, seat: str, user: str = "ann", node: str = "") -> int:
        """What sbatch with `--reservation` does, and with `--nodelist`; 0 if Slurm refuses it."""
        there = self.slurm.state.reservations.get(seat)
        if there is None or user not in there.users:
            return 0
        number = len(self.slurm.state.jobs) + 1
        job = Job(JobRef(number), "PENDING", user, 1000, "main", num_nodes=1, reservation=seat, priority=9)
        job = replace(job, req_nodes=node)
        self.slurm.state.jobs[number] = job
        self.slurm._try_start(job)
        if self.hides is not None and self.slurm.state.jobs[number].state == "RUNNING":
            self.slurm.update_job(job.ref, reservation=self.hides)
        return number

    def run(self, seconds: float, step_s: float = 0.5) -> None:
        """Each time before the daemon looks, and before the waiting job may start, the attacker tries."""

        async def passing() -> None:
            for _ in range(round(seconds / step_s)):
                if not self.entered:
                    self.entered = self.submit("srobust-seat-1")
                self.slurm.pass_s(step_s)
                await self.look()

        asyncio.run(passing())


Make = Callable[..., Attacked]


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Make]:
    """Makes a world whose daemon has read everything once."""
    with worlds(tmp_path, Attacked) as make:
        yield lambda nodes, text=ROOM: make(text, nodes)


def alerts(world: Attacked, what: str) -> list[str]:
    """What was told under this word."""
    return [r["text"] for r in world.journal.db.execute("SELECT text FROM events WHERE what = ?", (what,))]


def answer(world: Attacked, job_id: int, incident: str) -> str:
    """What the daemon answers to a new claim of this job."""
    world.claim(job_id, (world.slurm.state.jobs[job_id].nodes[0],), incident)
    world.run(8)
    said = parse_answer(world.slurm.state.jobs[job_id].admin_comment)
    assert said is not None
    assert said.incident == incident
    return said.state


def test_no_other_job_gets_into_the_seat_before_its_job_starts(made: Make) -> None:
    """The seat is the daemon's until the update that starts the job: sbatch is denied, the job runs on its seat."""
    world = made(3)
    world.slurm.run_job(("n1", "n2"))
    world.run(4)
    world.claim(1, ("n2",))
    world.run(20)
    job = world.slurm.state.jobs[1]
    assert (job.state, job.restart_count, job.nodes) == ("RUNNING", 1, ("n1", "n3"))
    assert not world.slurm.state.reservations, "a job that waits in the seat does not keep it"
    assert world.outcomes() == ["running"]
    waits = world.slurm.state.jobs.get(world.entered)
    assert waits is None or waits.reservation == ""
    assert alerts(world, "seat.entered") == []


@pytest.mark.parametrize("hides", [None, "", "course", "flex"])
def test_a_seat_that_another_job_takes_costs_its_user_the_claims_of_a_day(made: Make, hides: str | None) -> None:
    """A node of Ann's seat is silent, so her job waits in the open seat: it is given up, and nobody else suffers."""
    world = made(6)
    world.hides = hides
    for nodes, user in ((("n1", "n2"), "ann"), (("n5",), "ben"), (("n6",), "ann")):
        world.slurm.run_job(nodes, user=user)
    for name, flags in {"course": ("IGNORE_JOBS",), "flex": ("IGNORE_JOBS", "FLEX")}.items():
        world.slurm.create_reservation(name, "n6", ("ann",), 600, flags)
    world.run(4)
    world.claim(1, ("n2",))
    world.run(0.5)
    nodes = world.slurm.state.nodes
    nodes["n3"] = replace(nodes["n3"], flags=frozenset(("NOT_RESPONDING",)))
    world.run(6)
    intruder = world.slurm.state.jobs[world.entered]
    assert (intruder.state, intruder.reservation) == ("RUNNING", hides or ""), "no fault of a user's kills a job"
    assert [*world.slurm.state.reservations] == ["course", "flex"]
    assert world.outcomes() == ["aborted"]
    assert len(alerts(world, "seat.entered")) == 1
    nodes["n3"] = replace(nodes["n3"], flags=frozenset())
    assert answer(world, 2, "of-ben") == "accepted"
    assert answer(world, 3, "of-ann") == "refused"
    assert any("srobust breaker reset --user ann" in said for said in needs(published(world.daemon), world.slurm.now_s))
    world.live()
    assert answer(world, 3, "after-a-restart") == "refused"
    assert request_admit(world.journal, "ann", world.slurm.now_s, "root")
    assert answer(world, 3, "admitted") == "accepted"


def test_the_bar_ends_by_itself_after_a_day(made: Make) -> None:
    """And the journal forgets it."""
    world = made(6)
    bars = world.daemon.recoveries.bars
    for number in range(300):
        assert bars.bar(Job(JobRef(number), "RUNNING", f"u{number}", 1, "main"), "1", world.slurm.now_s)
    assert len(bars.all(world.slurm.now_s)) == 256
    assert bars.why("u299", world.slurm.now_s)
    assert not bars.why("ann", world.slurm.now_s)
    assert bars.all(world.slurm.now_s + DAY_S) == []


@pytest.mark.parametrize("late", [False, True])
def test_a_job_that_ran_on_the_nodes_before_is_no_intruder(made: Make, late: bool) -> None:
    """Small jobs of the same user share a survivor: they did not come through the seat.

    Nor did one that began just before a busy slurmctld made the seat: scontrol writes the time at which it asked.
    """
    world = made(3)
    world.entered = 99  # nobody attacks
    world.slurm.run_job(("n1", "n2"))
    if not late:
        world.slurm.run_job(("n1",))
    world.run(4)
    world.claim(1, ("n2",))
    if late:
        world.run(0.5)
        seats = world.slurm.state.reservations
        seats["srobust-seat-1"] = replace(seats["srobust-seat-1"], start_at_s=int(world.slurm.now_s) - 2)
        world.slurm.run_job(("n1",), start_at_s=int(world.slurm.now_s) - 1)
    world.run(3)
    world.slurm._end(world.slurm.state.jobs[2], "COMPLETED")
    world.run(10)
    assert world.outcomes() == ["running"]
    assert not alerts(world, "seat.entered")


def test_a_job_that_came_back_in_a_seat_of_its_own_is_no_intruder(made: Make) -> None:
    """Two jobs of Ann's share a node that both keep: one runs there again while the other waits in its open seat."""
    world = made(6, ROOM.replace("max_active: 1", "max_active: 2"))
    world.entered = 99  # nobody attacks
    for _ in range(2):
        world.slurm.run_job(("n1", "n2"))
    world.run(4)
    for number in (1, 2):
        world.claim(number, ("n2",))
    world.run(0.5)
    waits = next(f.recovery for f in world.daemon.recoveries.open.values() if f.row.job_id == 1).standby[0]
    nodes = world.slurm.state.nodes
    nodes[waits] = replace(nodes[waits], flags=frozenset(("NOT_RESPONDING",)))
    world.run(6)
    assert world.slurm.state.jobs[2].state == "RUNNING"
    assert world.outcomes() == ["", "running"]
    assert not alerts(world, "seat.entered")


@pytest.mark.parametrize("user", ["ann", "ben"])
def test_a_suspect_that_may_be_used_again_is_not_taken_out_of_another_jobs_seat(made: Make, user: str) -> None:
    """The second job has too few nodes, and n1, which it had left out, passes: n1 is in the first job's open seat."""
    world = made(3, ROOM.replace("max_active: 1", "max_active: 2"))
    world.entered = 99  # nobody attacks
    world.slurm.run_job(("n1", "n2"))
    world.slurm.run_job(("n1", "n2"), user=user)
    world.run(4)
    world.claim(1, ("n2",))
    world.run(0.5)
    nodes = world.slurm.state.nodes
    nodes["n3"] = replace(nodes["n3"], flags=frozenset(("NOT_RESPONDING",)))
    world.run(1)
    world.claim(2, ("n1",))
    world.run(10)
    nodes["n3"] = replace(nodes["n3"], flags=frozenset())
    world.run(4)
    assert world.slurm.state.jobs[1].nodes == ("n1", "n3")
    assert world.outcomes() == ["running", ""]
    assert not alerts(world, "seat.entered")


@pytest.mark.parametrize("late", [0.0, 1.0, -1.0])
def test_a_user_cannot_take_one_spare_node_after_the_other_through_a_seat_with_too_few(made: Make, late: float) -> None:
    """Ann's job, which she lets wait for another one, needs a node more: her next job takes the one that is added.

    It starts in the second in which the seat is opened again, or later. A busy slurmctld shows the node later than
    the job starts there.
    """
    world = made(7)
    world.entered, world.hides, starts = 99, "", world.slurm._try_start
    world.slurm.run_job(("n1", "n2"))
    others = [world.slurm.run_job((name,), user="ben") for name in ("n3", "n4", "n5", "n6", "n7")]
    world.run(4)
    world.slurm._try_start = lambda job: None if job.ref.job_id == 1 else starts(job)  # type: ignore[method-assign]
    world.claim(1, ("n2",))
    world.run(0.5)
    nodes, there, seen = world.slurm.state.nodes, [], {}
    nodes["n2"] = replace(nodes["n2"], state="DOWN")
    world.run(1)
    for job in others:
        world.slurm._end(job, "COMPLETED")

    def take() -> None:
        seat, now_s = world.slurm.state.reservations.get("srobust-seat-1"), world.slurm.now_s
        for name in sorted({*expand(seat.nodes if seat else "")} - {"n1"}):
            if now_s >= seen.setdefault(name, now_s) + late:
                number = world.submit("srobust-seat-1", node=name)
                there.extend(world.slurm.state.jobs[number].nodes if number else ())

    read = world.slurm.reservations

    def slowly() -> list[Reservation]:
        take()
        world.slurm.now_s -= late
        return read()

    if late < 0:
        world.slurm.reservations = slowly  # type: ignore[method-assign]
    for _ in range(30):
        world.run(1)
        if late >= 0:
            take()
    assert there == ["n3"]
    assert len(alerts(world, "seat.entered")) == 1
    assert world.outcomes() == ["aborted"]


def test_a_job_that_was_there_before_is_no_intruder_whatever_its_start_time_says(made: Make) -> None:
    """Slurm sets it anew when the last node of a job has booted; and two clocks may differ by a few seconds."""
    world = made(4)
    world.entered = 99  # nobody attacks
    world.slurm.run_job(("n1", "n2"))
    world.slurm.run_job(("n1", "n4"))
    world.run(4)
    world.claim(1, ("n2",))
    world.run(0.5)
    nodes, jobs = world.slurm.state.nodes, world.slurm.state.jobs
    nodes["n3"] = replace(nodes["n3"], flags=frozenset(("NOT_RESPONDING",)))
    world.run(4)
    jobs[2] = replace(jobs[2], start_at_s=int(world.slurm.now_s))
    world.run(4)
    assert jobs[1].reservation == "srobust-seat-1"
    assert not alerts(world, "seat.entered")
    jobs[2] = replace(jobs[2], restart_count=1)
    world.run(4)
    assert len(alerts(world, "seat.entered")) == 1


def test_a_job_that_was_requeued_and_still_ended_when_the_seat_opened_was_not_there_before(made: Make) -> None:
    """Slurm counts a restart with the requeue: Ann's job ends slowly elsewhere, and starts through the seat."""
    world = made(4)
    world.entered = 99
    world.slurm.run_job(("n1", "n2"))
    ends = world.slurm.run_job(("n4",)).ref
    world.run(4)
    world.slurm.stuck.add("n4")
    world.slurm.requeue(ends)
    nodes, jobs = world.slurm.state.nodes, world.slurm.state.jobs
    world.claim(1, ("n2",))
    world.run(0.5)
    nodes["n3"] = replace(nodes["n3"], flags=frozenset(("NOT_RESPONDING",)))
    world.run(3)
    assert jobs[1].reservation == "srobust-seat-1"
    jobs[2] = replace(jobs[2], state="PENDING", completing=False, nodes=(), reservation="srobust-seat-1")
    world.slurm._try_start(jobs[2])
    world.slurm.update_job(ends, reservation="")
    assert (jobs[2].state, jobs[2].nodes) == ("RUNNING", ("n1",))
    world.run(4)
    assert len(alerts(world, "seat.entered")) == 1
    assert world.outcomes() == ["aborted"]


def test_a_job_that_came_to_a_spare_node_just_before_the_seat_did_is_no_intruder(made: Make) -> None:
    """Slurm starts Ann's small job on a node that was free a moment ago; slurmctld's clock is 3 s ahead."""
    world = made(4)
    world.entered, change = 99, world.slurm.update_reservation
    world.slurm.run_job(("n1", "n2"))
    other, _ = [world.slurm.run_job((name,), user="ben") for name in ("n3", "n4")]
    world.run(4)
    world.claim(1, ("n2",))
    world.run(0.5)
    world.slurm.state.nodes["n2"] = replace(world.slurm.state.nodes["n2"], state="DOWN")
    world.run(10)
    small: list[Job] = []

    def late(name: str, *, nodes: str | None = None, duration_min: int | None = None) -> None:
        if not small and "n3" in expand(nodes or ""):
            small.append(world.slurm.run_job(("n3",), start_at_s=int(world.slurm.now_s) + 3))
        change(name, nodes=nodes, duration_min=duration_min)

    world.slurm.update_reservation = late  # type: ignore[method-assign]
    world.slurm._end(other, "COMPLETED")
    world.run(8)
    assert small
    assert not alerts(world, "seat.entered")
    assert world.outcomes() == [""]
