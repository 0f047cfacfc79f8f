"""Quiet captures, without a cluster."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import supervised

from slurm_robust.core.model import Conclusion, Grade, JobRef, SignalKind, Verdict
from slurm_robust.localize.evidence import Capture
from slurm_robust.supervise.agent.messages import from_agent
from slurm_robust.supervise.incident.investigation import Investigation
from slurm_robust.supervise.incident.quiet_captures import ProvenSuspicion, QuietCaptures
from slurm_robust.supervise.lineage.attempt_start import AttemptStart
from slurm_robust.supervise.lineage.lineage_store import LineageStore
from slurm_robust.supervise.session import Session
from slurm_robust.supervise.watch.attempt_state import AttemptState


class Unseen:
    """An attempt that was launched ten minutes ago, and of which no rank was ever seen."""

    def __init__(self, folder: Path, *, silent: tuple[str, ...] = ()) -> None:
        self.world = supervised.World(folder, command="python train.py")
        self.world.job.info = replace(self.world.job.info, ref=JobRef(5))
        self.world.session.allocation.silent_nodes = list(silent)
        attempt = self.world.attempt()
        start = AttemptStart(self.world.session, attempt, LineageStore(self.world.session))
        self.captures = QuietCaptures(self.world.session, attempt, start)
        self.world.clock.at_s += 600

    def poll(self) -> object:
        """One poll."""
        return asyncio.run(self.captures.poll())


def test_a_step_that_never_gets_a_rank_is_reported_once(tmp_path: Path) -> None:
    """It may wait for another step, or for an image: nothing is done, and the log says where to look."""
    unseen = Unseen(tmp_path)
    for _ in range(3):
        assert unseen.poll() is None
    assert str(unseen.world.story).count("no rank has been seen in 10 min") == 1
    assert "squeue --steps --jobs 5" in unseen.world.text("note")


def test_nodes_without_an_agent_are_named_beside_it(tmp_path: Path) -> None:
    """Then it is no waiting step: the nodes themselves do not answer."""
    unseen = Unseen(tmp_path, silent=("n2",))
    unseen.poll()
    assert "no agent answers on n2" in unseen.world.text("note")


def test_a_step_that_has_ended_is_not_waited_for(tmp_path: Path) -> None:
    """Its exit is another matter."""
    unseen = Unseen(tmp_path)
    assert unseen.world.channel is not None
    unseen.world.channel.ended = 1
    unseen.poll()
    assert unseen.world.story == []


HANG = Verdict(Conclusion.CULPRIT, "rank 1 on n2 is in D state", corroborated=True, grade=Grade.STRONG)
STOPPED = Verdict(Conclusion.CULPRIT, "rank 1 on n2 is stopped", corroborated=True, grade=Grade.WEAK)
GONE = Verdict(Conclusion.CULPRIT, "rank 1 on n2 is gone", corroborated=True, grade=Grade.CERTAIN)
UNSURE = Verdict(Conclusion.CULPRIT, "rank 1 on n2 may hang", grade=Grade.STRONG)
NOTHING = Verdict(Conclusion.UNDETERMINED, "nothing is known")


class Captures(Investigation):
    """Captures that cost nothing, and show what the test says."""

    world: World

    async def capture(self, *, keep: bool = True) -> Capture:
        """One more."""
        assert not keep, "nothing is written"
        self.rounds += 1
        self.world.captured.append(self.world.now_s)
        self.captures.append(Capture(self.world.now_s, ()))
        return self.captures[-1]

    def judge(self) -> Verdict:
        """A hang is proven by two captures."""
        verdict = self.world.shows
        return UNSURE if verdict in (HANG, GONE) and len(self.captures) < 2 else verdict

    def ended_are_waited_for_in_s(self) -> float:
        """They are."""
        return 0.0


class World:
    """A job of two ranks, polled each half second of a clock of its own."""

    def __init__(self, folder: Path) -> None:
        self.base = supervised.World(folder)
        self.base.clock.at_s = 1000.0
        self.shows = NOTHING
        self.captured: list[float] = []
        self.proven: list[float] = []
        self.suspicions: list[ProvenSuspicion] = []
        self.attempt = self.base.attempt()
        self.base.finds_ranks()
        start = AttemptStart(self.base.session, self.attempt, LineageStore(self.base.session))
        self.quiet = QuietCaptures(self.base.session, self.attempt, start, self.investigation)

    def investigation(self, session: Session, attempt: AttemptState) -> Captures:
        """For the quiet captures."""
        made = Captures(session, attempt)
        made.world = self
        return made

    @property
    def now_s(self) -> float:
        """The clock."""
        return self.base.clock.at_s

    def says(self, step: int, phase: str = "train", rank: int = 0) -> None:
        """A rank's own report."""
        entry = [rank, step, phase, 0.0, 1, None, None, None]
        self.attempt.fleet.feed(from_agent({"t": "p", "n": "n1", "r": [entry]}), self.now_s)

    def stops(self, pid: int = 101) -> None:
        """The agent of n2 finds a process of rank 1 stopped."""
        self.attempt.fleet.feed(from_agent({"t": "state", "n": "n2", "rank": 1, "s": "T", "pid": pid}), self.now_s)

    def passes(self, seconds: float) -> None:
        """Time passes; what is proven is left alone for long, as in observe mode."""
        until = self.now_s + seconds
        while self.now_s < until:
            self.base.clock.at_s += 0.5
            if self.attempt.fleet.ranks:
                self.attempt.note_vanished()
            found = asyncio.run(self.quiet.poll())
            if found is not None:
                self.proven.append(self.now_s)
                self.suspicions.append(found)
                self.attempt.quiet_until_s = self.now_s + 1800


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A job that has just been launched."""
    return World(tmp_path)


@pytest.mark.parametrize(("phase", "after_s"), [("startup", 1800), ("train", 300)])
def test_a_stopped_process_is_weak_evidence_in_the_first_steps(world: World, phase: str, after_s: int) -> None:
    """It is captured within seconds, and acted on after five minutes of silence; before the first step after 30."""
    world.says(-1 if phase == "startup" else 2, phase)
    world.shows = STOPPED
    world.passes(1)
    world.stops()
    world.passes(20)
    assert world.captured[0] - 1000.0 < 10
    assert world.proven == []
    world.passes(after_s)
    assert [round(at - 1000.0) for at in world.proven] == [after_s]


def test_a_stopped_process_in_an_announced_pause_waits_for_its_end(world: World) -> None:
    """No pause of this kind has ended so far, so nobody knows how long it may last."""
    world.says(2, "checkpoint")
    world.shows = STOPPED
    world.stops()
    world.passes(900)
    assert world.proven == []


def test_a_stopped_process_in_an_announced_pause_is_captured_after_the_jobs_own_limit(world: World) -> None:
    """Its p99 is known, and is no measure of the pause; a stopped process is worth a look."""
    for step in range(10):
        world.base.clock.at_s += 4.0
        world.says(step)
    world.says(9, "evaluate")
    began, world.shows = world.now_s, STOPPED
    world.stops()
    world.passes(60)
    assert 14.0 <= world.captured[0] - began < 20.0, "3 × 4 s + 2 s"
    assert world.proven == []


def test_a_stopped_process_that_holds_nobody_up_is_left_alone(world: World) -> None:
    """Training goes on beside it; and a stopped helper is not the rank itself."""
    world.shows = HANG
    world.stops()
    for step in range(4):
        world.says(step)
        world.passes(3)
    assert world.captured == []
    world.stops(pid=4711)
    world.passes(25)
    assert world.captured == [], "only the usual interval counts"


def test_a_hang_at_the_second_step_is_captured_after_the_quiet_interval(world: World) -> None:
    """30 s by default; soon again while it is not proven, and once more when its patience is over."""
    world.passes(5)
    world.says(2)
    world.shows = HANG
    world.passes(300)
    assert [round(at - 1005.0) for at in world.captured] == [30, 34, 64, 75]
    assert [round(at - 1005.0) for at in world.proven] == [75]
    assert world.suspicions[0].silent_s == pytest.approx(75.0, abs=0.6)


def test_captures_from_before_a_step_prove_nothing(world: World) -> None:
    """Steps of a minute: each pause is judged by itself, and nothing is done."""
    world.shows = HANG
    for step in range(4):
        world.says(step)
        world.passes(59)
    assert len(world.captured) >= 4
    assert world.proven == []


def test_a_pause_that_was_healthy_before_is_waited_for(world: World) -> None:
    """Pauses of two minutes between steps: strong evidence is not acted on before three times as long."""
    for step in range(3):
        world.says(step)
        world.attempt.note_pauses()
        world.passes(120)
    world.says(3)
    world.attempt.note_pauses()
    world.shows = HANG
    world.passes(350)
    assert world.proven == []
    world.passes(30)
    assert len(world.proven) == 1


def test_a_job_that_knows_its_own_step_times_is_not_captured(world: World) -> None:
    """Its silence is measured by them."""
    for step in range(10):
        world.base.clock.at_s += 4.0
        world.says(step)
    world.shows = HANG
    world.passes(600)
    assert world.captured == []


def test_what_a_debugger_holds_is_not_captured_for_ever(world: World) -> None:
    """Agents cannot tell it from a stop; stacks can. After some captures it is left to the usual pace."""
    world.says(2)
    world.stops()
    world.passes(100)
    assert len(world.captured) == 4 + 2, "at once four times, and then every half minute"


def test_a_job_without_any_progress_is_captured_as_before(world: World) -> None:
    """Every half minute; acted on once what they show has lasted: it may be before its first step."""
    world.passes(120)
    assert [round(at - 1000.0) for at in world.captured] == [30, 60, 90, 120]
    world.shows = HANG
    world.passes(320)
    assert world.proven == []
    world.passes(30)
    assert len(world.proven) == 1


def test_a_stop_is_captured_at_once_in_a_job_without_any_progress(world: World) -> None:
    """However often it was captured before."""
    world.passes(100)
    before = len(world.captured)
    world.shows = STOPPED
    world.stops()
    world.passes(10)
    assert len(world.captured) >= before + 2
    assert world.proven == []


def test_ranks_that_vanished_are_proven_dead_by_the_others_stacks(world: World) -> None:
    """Two captures, two seconds apart; the suspicion names the rank, and its exit status is unknown."""
    world.says(2)
    world.shows = GONE
    world.base.loses(1)
    world.passes(10)
    assert [round(b - a, 1) for a, b in zip(world.captured, world.captured[1:], strict=False)][:1] == [2.5]
    (found,) = world.suspicions
    assert found.signal.kind is SignalKind.RANK_EXITED
    assert found.text == "rank 1 on n2 is gone (exit status unknown), and the others wait for it"
    assert not found.finished


def test_ranks_that_finished_are_given_more_time(world: World) -> None:
    """Exit code 0: nobody is at fault, unless the others wait for them long after."""
    world.says(2)
    world.shows = Verdict(Conclusion.USER_CODE, "the others wait for a rank that has finished")
    told = {"t": "exit", "n": "n2", "step_id": "0", "task": 1, "code": 0, "sig": 0, "age_s": 0.1}
    world.attempt.fleet.feed(from_agent(told), world.now_s)
    world.base.loses(1)
    world.passes(60)
    assert world.suspicions == []
    world.passes(120)
    found = world.suspicions[0]
    assert found.finished
    assert "exit code 0" in found.text


def test_a_helper_that_ends_while_others_wait_for_another_step_has_not_died(world: World) -> None:
    """The world has four ranks, two of which run in another step: whoever is waited for may be one of those."""
    world.says(2)
    world.attempt.fleet.world = 4
    world.shows = HANG
    world.base.loses(1)
    world.passes(60)
    assert len(world.captured) > 2
    assert world.suspicions == []
    assert Investigation(world.base.session, world.attempt).evidence.exits == ()
