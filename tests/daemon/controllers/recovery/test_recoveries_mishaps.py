"""Recoveries against a simulated Slurm: any mishap at any moment leads to the same end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from daemon_world import Dies, World
from fake_slurm import FakeSlurm
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_robust.config.site import Config, parse
from slurm_robust.core.model import JobRef
from slurm_robust.daemon.store.node_ledger import NodeLedger
from slurm_robust.marks.claim import Claim, parse_answer, render
from slurm_robust.slurm.client import JobPlacement, Reservation
from slurm_robust.slurm.errors import SlurmTimeoutError

if TYPE_CHECKING:
    from typing_extensions import Unpack


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Six nodes, the defaults but for the mode."""
    made = World(tmp_path, FakeSlurm(), Config())
    yield made
    made.journal.close()


mishaps = st.lists(
    st.one_of(
        st.tuples(st.just("die"), st.integers(1, 8)),
        st.tuples(st.just("forget"), st.integers(0, 3)),
        st.tuples(st.just("save"), st.just(0)),
        st.tuples(st.just("away"), st.integers(1, 4)),
        st.tuples(st.just("wait"), st.integers(1, 6)),
    ),
    max_size=8,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(mishaps, st.booleans())
def test_whatever_dies_the_job_comes_back(
    tmp_path_factory: pytest.TempPathFactory, events: list[tuple[str, int]], fit: bool
) -> None:
    """The daemon killed after any action, slurmctld back to any earlier state: the job runs elsewhere, all tidy."""
    slurm = FakeSlurm(recheck_exit="0:0" if fit else "1:0")
    world = World(tmp_path_factory.mktemp("loop"), slurm, Config())
    try:
        job = slurm.run_job(("n1", "n2", "n3"))
        world.run(6)
        world.claim(job.ref.job_id, ("n2",))
        slurm.save()
        for kind, number in events:
            if kind == "die":
                world.daemon.actor.crash = Dies(number)
            elif kind == "forget":
                slurm.forget()
            elif kind == "save":
                slurm.save()
            elif kind == "away":
                slurm.down = True
                world.run(number)
                slurm.down = False
            world.run(number)
        world.run(300)
        after = slurm.state.jobs[job.ref.job_id]
        assert after.state == "RUNNING"
        assert after.restart_count >= 1
        assert "n2" not in after.nodes
        assert after.reservation == ""
        assert not slurm.state.reservations
        assert world.outcomes() == ["running"]
        assert not NodeLedger(world.journal).quarantines()
        assert slurm.state.nodes["n2"].drained is not fit
        if fit:
            assert len(NodeLedger(world.journal).strikes("n2", 0)) >= 1
    finally:
        world.journal.close()


def test_claims_drain_takes_the_node_out_at_once(tmp_path: Path) -> None:
    """A site of one tenant drains on the claim, with its words; there is no recheck."""
    slurm = FakeSlurm()
    world = World(tmp_path, slurm, parse("quarantine: {claims: drain}"))
    slurm.run_job(("n1", "n2"))
    world.run(6)
    world.claim(1, ("n2",))
    world.run(20)
    assert slurm.state.nodes["n2"].reason == "srobust: hang"
    assert slurm.state.jobs[1].nodes == ("n1", "n3")
    assert "submit" not in slurm.acts
    world.journal.close()


def test_het_jobs_are_only_alerted_on(world: World) -> None:
    """A component of a het job is answered, and nothing else."""
    world.slurm.run_job(("n1", "n2"), hetjob_id=7)
    world.run(6)
    world.claim(1, ("n2",))
    world.run(10)
    assert world.outcomes() == ["refused"]
    assert not world.slurm.state.reservations
    answer = parse_answer(world.slurm.state.jobs[1].admin_comment)
    assert answer is not None
    assert "het" in answer.why


def test_job_that_helped_itself_is_left_alone(world: World) -> None:
    """The daemon dies after its plan, the job stops asking; the next life of the daemon gives the plan up."""
    world.slurm.run_job(("n1", "n2"))
    world.run(6)
    world.claim(1, ("n2",))
    world.daemon.actor.crash = Dies(3)
    world.slurm.save()
    world.run(1.5)
    job = world.slurm.state.jobs[1]
    world.slurm.state.jobs[1] = replace(
        job, comment=render(Claim("watching", "line-1", step=9, at_s=world.slurm.now_s))
    )
    world.run(60)
    assert world.slurm.state.jobs[1].restart_count == 0
    assert world.outcomes() == ["aborted"]
    # The suspect is checked all the same, once the job has left it.
    assert list(world.slurm.state.reservations) == ["srobust-quarantine-n2"]


def test_node_with_another_job_is_never_set_down(world: World) -> None:
    """The suspect holds up the end, but runs somebody else's job too: that one is not killed for it."""
    world.slurm.run_job(("n1", "n2", "n3"))
    world.slurm.run_job(("n2",), user="ben")
    world.slurm.stuck.add("n2")
    world.run(6)
    world.claim(1, ("n2",))
    world.run(60)
    assert "set_down n2" not in world.slurm.acts
    assert world.slurm.state.jobs[2].state == "RUNNING"


def test_no_node_is_set_down_while_a_job_cannot_be_read(world: World) -> None:
    """It may run there; once it can be read, or is gone, the node is set DOWN."""
    world.slurm.run_job(("n1", "n2", "n3"))
    world.slurm.stuck.add("n2")
    world.slurm.unread = {"jobs": ["job 9: not a job state"]}
    world.run(6)
    world.claim(1, ("n2",))
    world.run(30)
    assert "set_down n2" not in world.slurm.acts
    world.slurm.unread = {}
    world.run(30)
    assert "set_down n2" in world.slurm.acts


def test_job_whose_node_was_given_up_at_once(world: World) -> None:
    """Running at one look, requeued with its node DOWN at the next: brought back; requeued otherwise: left alone."""
    slurm = world.slurm
    for job_id, nodes in ((1, ("n1", "n2")), (2, ("n3",))):
        job = slurm.run_job(nodes)
        said = render(Claim("watching", f"line-{job_id}"))
        slurm.state.jobs[job_id] = replace(job, comment=said)
    world.run(8)
    slurm.state.nodes["n2"] = replace(slurm.state.nodes["n2"], state="DOWN", reason="Not responding")
    for job_id in (1, 2):
        slurm.requeue(JobRef(job_id))
    world.run(30)
    after = slurm.state.jobs[1]
    assert after.state == "RUNNING"
    assert "n2" not in after.nodes
    assert slurm.state.nodes["n2"].reason == "srobust: stopped responding while job 1 ran on it"
    assert slurm.state.jobs[2].state == "PENDING"
    assert slurm.state.jobs[2].start_at_s > slurm.now_s + 60
    assert world.outcomes() == ["running"]


def test_clock_that_is_set_back_stops_nothing(world: World) -> None:
    """An hour back in the middle of a recovery: it goes on at once, and the node is checked, within seconds."""
    slurm = world.slurm
    slurm.run_job(("n1", "n2", "n3"))
    slurm.stuck.add("n2")
    world.run(6)
    world.claim(1, ("n2",))
    world.run(1.0)
    for job in list(slurm.state.jobs.values()):
        slurm.state.jobs[job.ref.job_id] = replace(job, start_at_s=job.start_at_s - 3600)
    for r in list(slurm.state.reservations.values()):
        slurm.state.reservations[r.name] = replace(r, start_at_s=r.start_at_s - 3600, end_at_s=r.end_at_s - 3600)
    slurm.now_s -= 3600
    world.run(60)
    assert slurm.state.jobs[1].state == "RUNNING"
    assert not NodeLedger(world.journal).quarantines()
    assert not slurm.state.reservations


def test_two_jobs_that_lose_a_node_at_once_get_a_node_each(world: World) -> None:
    """One rack, two jobs: the seat of the first is not made yet when the second one's is planned."""
    slurm = world.slurm
    for job_id, nodes in ((1, ("n1", "n2")), (2, ("n3", "n4"))):
        slurm.state.jobs[job_id] = replace(slurm.run_job(nodes), comment=render(Claim("watching", f"line-{job_id}")))
    world.run(8)
    for name in ("n2", "n4"):
        slurm.state.nodes[name] = replace(slurm.state.nodes[name], flags=frozenset(("NOT_RESPONDING",)))
    world.run(8)
    plans = [row.recovery for row in world.journal.incidents() if row.recovery is not None]
    assert {name for plan in plans for name in plan.standby} == {"n5", "n6"}


class EndingSlurm(FakeSlurm):
    """Its controller does not answer the first requeues; the first job ends right after several were read at once."""

    refuses = -1

    def requeue_and_place(self, job: JobRef, *, start_in_s: int, **placement: Unpack[JobPlacement]) -> bool:
        """Not answered at first."""
        if self.refuses > 0:
            self.refuses -= 1
            raise SlurmTimeoutError(f"requeue {job.address}")
        return super().requeue_and_place(job, start_in_s=start_in_s, **placement)

    def reservations(self) -> list[Reservation]:
        """What is read between the jobs and the first step."""
        if not self.refuses:
            self.state.jobs[1] = replace(self.state.jobs[1], state="COMPLETED", nodes=())
        return super().reservations()


def test_job_that_has_ended_since_is_not_started_again(tmp_path: Path) -> None:
    """Slurm requeues finished jobs, too: none is requeued by what was read half a second before."""
    slurm = EndingSlurm()
    world = World(tmp_path, slurm, Config())
    for nodes in (("n1", "n2"), ("n3", "n4")):
        slurm.run_job(nodes)
    world.run(6)
    slurm.refuses = 2
    for job_id, suspect in ((1, "n2"), (2, "n4")):
        world.claim(job_id, (suspect,))
    world.run(20)
    assert not slurm.refuses
    assert slurm.state.jobs[1].state == "COMPLETED"
    assert "requeue 1" not in slurm.acts
    assert "requeue 2" in slurm.acts
    world.journal.close()
