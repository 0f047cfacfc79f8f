"""The daemon's loop against a simulated Slurm: any mishap at any moment, and the end is always the same."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fake_slurm import FakeSlurm
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_robust.claim import Claim, parse_answer, render
from slurm_robust.config import Config, parse
from slurm_robust.daemon.actor import CrashPoint
from slurm_robust.daemon.controllers.breaker import request_reset
from slurm_robust.daemon.core import Core, Ration
from slurm_robust.daemon.service import Daemon
from slurm_robust.daemon.store.journal import Journal
from slurm_robust.daemon.store.node_ledger import Ledger, Quarantine
from slurm_robust.model import JobRef, Mode
from slurm_robust.slurm.errors import SlurmError


class KilledError(BaseException):
    """kill -9."""


class Dies(CrashPoint):
    """Dies after so many more actions."""

    def __init__(self, actions: int) -> None:
        super().__init__("")
        self.left = actions

    def after(self, what: str) -> None:
        """Count, and die."""
        self.left -= 1
        if self.left == 0:
            raise KilledError


class World:
    """A simulated Slurm, a journal, and lives of the daemon."""

    def __init__(self, folder: Path, slurm: FakeSlurm, config: Config, mode: Mode = Mode.ACT) -> None:
        self.slurm, self.config, self.mode = slurm, config, mode
        self.journal = Journal.open(folder)
        self.daemon = self.live()

    def live(self) -> Daemon:
        """A new life of the daemon."""
        core = Core(
            self.config, self.slurm, self.journal, account="root", mode=self.mode, clock=lambda: self.slurm.now_s
        )
        self.daemon = Daemon(core)
        self.daemon.recoveries.load()
        return self.daemon

    async def look(self) -> None:
        """One look, with Slurm's errors taken as the loop takes them."""
        try:
            await self.daemon._look()
        except SlurmError:
            return
        except KilledError:
            self.live()

    def run(self, seconds: float, step_s: float = 0.5) -> None:
        """Let time pass, with a look every step."""

        async def passing() -> None:
            for _ in range(round(seconds / step_s)):
                self.slurm.pass_s(step_s)
                await self.look()

        asyncio.run(passing())

    def claim(self, job_id: int, evict: tuple[str, ...], incident: str = "i1", **more: object) -> None:
        """The job asks."""
        job = self.slurm.state.jobs[job_id]
        said = Claim("wants", f"line-{job_id}", restart=job.restart_count, incident=incident, evict=evict, why="hang")
        self.slurm.state.jobs[job_id] = replace(job, comment=render(replace(said, **more)))  # type: ignore[arg-type]

    def outcomes(self) -> list[str]:
        """What the incidents came to, oldest first."""
        return [row.outcome for row in reversed(self.journal.incidents())]


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


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
        assert not Ledger(world.journal).quarantines()
        assert slurm.state.nodes["n2"].drained is not fit
        if fit:
            assert Ledger(world.journal).strikes("n2", 0) >= 1
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


def test_recheck_that_cannot_tell_is_tried_again_then_given_back(tmp_path: Path) -> None:
    """Unknown is not unhealthy: five rechecks without a result, then back with a strike and an alert."""
    slurm = FakeSlurm(recheck_exit="3:0")
    world = World(tmp_path, slurm, Config())
    slurm.run_job(("n1", "n2"))
    world.run(6)
    world.claim(1, ("n2",))
    world.run(900, step_s=1.0)
    assert slurm.acts.count("submit") == 5
    assert not slurm.state.nodes["n2"].drained
    assert not slurm.state.reservations
    assert Ledger(world.journal).strikes("n2", 0) == 1
    world.journal.close()


def test_suspect_that_holds_up_the_end_but_answers(world: World) -> None:
    """It is set DOWN so that the job can go on, brought back into its quarantine, checked, and back with a strike."""
    world.slurm.run_job(("n1", "n2", "n3"))
    world.slurm.stuck.add("n2")
    world.run(6)
    world.claim(1, ("n2",))
    world.run(60)
    assert world.slurm.acts.count("set_down n2") == 1
    assert world.slurm.acts.count("resume n2") == 1
    assert world.slurm.state.jobs[1].state == "RUNNING"
    assert not world.slurm.state.nodes["n2"].drained
    assert Ledger(world.journal).strikes("n2", 0) == 1


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


def test_silent_node_in_quarantine_is_drained(world: World) -> None:
    """The suspect's slurmd is frozen: DOWN, silent, drained with what was witnessed, never resumed."""
    world.slurm.run_job(("n1", "n2", "n3"))
    world.run(6)
    node = world.slurm.state.nodes["n2"]
    world.slurm.state.nodes["n2"] = replace(node, flags=frozenset(("NOT_RESPONDING",)))
    world.claim(1, ("n2",))
    world.run(60)
    assert world.slurm.state.jobs[1].state == "RUNNING"
    assert "resume n2" not in world.slurm.acts
    drained = world.slurm.state.nodes["n2"]
    assert drained.reason.startswith("srobust: held up the end of job 1")
    assert "DRAIN" in drained.flags


def test_quarantine_is_renewed_while_the_daemon_lives(tmp_path: Path) -> None:
    """A quarantine longer than its reservation is kept up, never for longer than the seat's duration ahead."""
    slurm = FakeSlurm()
    world = World(tmp_path, slurm, Config())
    slurm.run_job(("n2",), user="ben")  # the recheck waits for this job to end
    Ledger(world.journal).quarantine(Quarantine("n2", "k", 1, "l", "why", slurm.now_s, slurm.now_s))
    for _ in range(40):
        world.run(60, step_s=5.0)
        held = slurm.state.reservations["srobust-quarantine-n2"]
        assert slurm.now_s < held.end_at_s <= slurm.now_s + 660
    world.journal.close()


def test_breaker_counts_prolog_drains_and_is_reset(tmp_path: Path) -> None:
    """Drains that the prolog made count too; open, claims are refused; reset, they are taken again."""
    slurm = FakeSlurm(nodes=12)
    world = World(tmp_path, slurm, parse("breaker: {max_drains: 2, max_partition_share: 1.0}"))
    slurm.run_job(("n1", "n2"))
    world.run(6)
    for name in ("n7", "n8", "n9"):
        slurm.drain(name, "srobust: XID 79")
    world.run(10)
    assert world.daemon.breaker.why_open
    assert not any("srobust-drain-permit" in n.comment for n in slurm.state.nodes.values())
    assert all(n.comment == "[[srobust-no-drain-permit]]" for n in slurm.state.nodes.values())
    world.claim(1, ("n2",))
    world.run(5)
    assert world.outcomes() == ["refused"]
    request_reset(world.journal, slurm.now_s, "ann")
    world.claim(1, ("n2",), incident="i2")
    world.run(20)
    assert world.outcomes() == ["refused", "running"]
    assert all("srobust-drain-permit" in n.comment for n in slurm.state.nodes.values())
    world.journal.close()


def test_own_words_of_administrators_stay_on_the_nodes(world: World) -> None:
    """The permit stands beside what an administrator wrote."""
    node = world.slurm.state.nodes["n3"]
    world.slurm.state.nodes["n3"] = replace(node, comment="rack 7, ticket 12")
    world.run(6)
    assert world.slurm.state.nodes["n3"].comment.startswith("rack 7, ticket 12 [[srobust-drain-permit until=")
    calls = world.slurm.acts.count("comment n3")
    world.run(600, step_s=5.0)
    assert world.slurm.acts.count("comment n3") <= calls + 2


def test_standby_pool_is_kept(tmp_path: Path) -> None:
    """The pool is made, refilled when a member drains, renewed before it ends, and never takes a node in use."""
    slurm = FakeSlurm()
    world = World(tmp_path, slurm, parse("standby: {size: 2, duration_days: 1}"))
    slurm.run_job(("n1", "n2", "n3"))
    world.run(30)
    (pool,) = slurm.state.reservations.values()
    assert pool.nodes == "n[5-6]"
    slurm.drain("n6", "fan")
    world.run(30)
    (pool,) = slurm.state.reservations.values()
    assert pool.nodes == "n[4-5]"
    world.run(3 * 86400, step_s=600.0)
    (pool,) = slurm.state.reservations.values()
    assert pool.end_at_s > slurm.now_s
    world.journal.close()


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


def test_ration_is_bounded() -> None:
    """A flood of keys costs no memory, and a key gets its ration again after the window."""
    ration = Ration(2, 10.0, keys=8)
    assert [ration.take("a", at_s) for at_s in (0, 1, 2, 11, 12)] == [True, True, False, True, True]
    for number in range(100):
        ration.take(f"k{number}", 20)
    assert len(ration._used) == 8


def test_recheck_whose_quarantine_ended_under_it_is_not_waited_for(world: World) -> None:
    """The daemon was away, the reservation ended, Slurm holds the recheck for ever: it is cancelled and done anew."""
    slurm = world.slurm
    node = Quarantine("n2", "k", 1, "l", "why", slurm.now_s, slurm.now_s)
    Ledger(world.journal).quarantine(node)
    world.run(2.5)
    held = next(j for j in slurm.state.jobs.values() if j.name.startswith("srobust-recheck"))
    slurm.state.jobs[held.ref.job_id] = replace(
        held, state="RESV_DEL_HOLD", nodes=(), priority=0, reservation="", exit_code=""
    )
    world.run(120)
    assert slurm.state.jobs[held.ref.job_id].state == "CANCELLED"
    assert not Ledger(world.journal).quarantines()
    assert not slurm.state.reservations


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
    assert not Ledger(world.journal).quarantines()
    assert not slurm.state.reservations


@pytest.mark.parametrize("drained", [False, True])
def test_quarantine_is_released_once_its_recheck_has_let_go(tmp_path: Path, drained: bool) -> None:
    """The node of a recheck takes seconds to end it: the reservation is deleted once, after that, without a failure."""
    slurm = FakeSlurm()
    slurm.recheck_ends_s = 8.0
    world = World(tmp_path, slurm, Config())
    Ledger(world.journal).quarantine(Quarantine("n2", "k", 1, "l", "why", slurm.now_s, slurm.now_s))
    world.run(3.0)
    recheck = next(j for j in slurm.state.jobs.values() if j.name.startswith("srobust-recheck"))
    if drained:  # by the recheck's own prolog, while it runs
        slurm.drain("n2", "srobust: XID 79")
    world.run(30)
    assert slurm.acts.count("delete srobust-quarantine-n2") == 1
    assert slurm.acts.count(f"cancel {recheck.ref.address}") <= drained
    assert not Ledger(world.journal).quarantines()
    events = [r["what"] for r in world.journal.db.execute("SELECT what FROM events WHERE level = 'warning'")]
    assert [w for w in events if "quarantine" in w] == []
    if not drained:
        count = world.journal.db.execute("SELECT count(*) FROM strikes").fetchone()[0]
        assert count == 1
    world.journal.close()
