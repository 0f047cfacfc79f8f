"""What is done about silence, without a cluster. Only the clock, the agents and Slurm are the test's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest
from handler_parts import Parts
from supervised import World, in_d_state

from slurm_robust.config.site import Config
from slurm_robust.core.model import Conclusion, Grade, Mode, Road, Signal, SignalKind, Suspect, Verdict
from slurm_robust.localize.votes.busy_ranks import ENDLESS
from slurm_robust.marks.claim import Claim
from slurm_robust.policy.job.consequences import Pauses
from slurm_robust.supervise.incident.investigation import Investigation
from slurm_robust.supervise.incident.quiet_captures import ProvenSuspicion
from slurm_robust.supervise.launch.attached_step import AttachedStep
from slurm_robust.supervise.launch.supervisor_lock import SupervisorLock
from slurm_robust.supervise.outcome import ExecutePlan, Exit

LIMIT_S = 600.0


def silent_for(parts: Parts, seconds: float) -> None:
    """Twenty steps, and then none."""
    parts.world.finds_ranks()
    parts.world.trains()
    parts.world.clock.at_s += seconds


def test_the_action_limit_is_checked_when_it_is_due(tmp_path: Path) -> None:
    """Not at the next capture, which may be `recapture_s` (here ten minutes) away."""
    limits = {"action_limit_s": LIMIT_S, "recapture_s": LIMIT_S}
    parts = Parts(World(tmp_path, command="python train.py", supervise=limits))
    world = parts.world
    silent_for(parts, 11.0)
    last_step_s = world.clock.at_s - 11.0
    outcome = asyncio.run(parts.silent())
    assert isinstance(outcome, ExecutePlan)
    assert outcome.plan.road is not Road.ALERT_ONLY
    assert world.clock.at_s - last_step_s == pytest.approx(LIMIT_S, abs=1.0)
    assert parts.log.incident.plan == outcome.plan
    assert parts.log.incident.signals[0].kind is SignalKind.SILENCE


def test_a_silence_after_which_no_rank_is_left_is_not_waited_with(tmp_path: Path) -> None:
    """One exit is known, the other rank went with its slurmstepd: which was first is not known, and both are dead."""
    output = tmp_path / "slurm-1.out"
    output.touch()
    parts = Parts(World(tmp_path, command="python train.py", supervise={"action_limit_s": LIMIT_S}))
    parts.attempt = parts.start._attempt = parts.world.attempt(paths=(output,))
    parts.world.finds_ranks()
    for step in range(20):
        parts.world.clock.at_s += 1.0
        output.write_text("".join(f"step {n}/100 loss 1.0\n" for n in range(step)))
        parts.attempt.read_outputs()
    parts.exit_of(0, code=1)
    parts.world.clock.at_s += 11.0
    began_s = parts.world.clock.at_s
    parts.world.clock.on_sleep = lambda: parts.world.loses(1)
    parts.attempt.fleet.ranks[1].last_seen_s = began_s - 11.2  # as a new agent on its node finds
    outcome = asyncio.run(parts.silent())
    assert isinstance(outcome, ExecutePlan)
    assert outcome.verdict.conclusion is Conclusion.UNDETERMINED
    assert parts.world.clock.at_s - began_s < 15.0


def test_strong_evidence_is_a_plan_once_its_patience_is_over(tmp_path: Path) -> None:
    """The plan names the node, the incident has its verdict, and nothing was carried out.

    It comes within 90 s of the last step, with the site's defaults.
    """
    parts = Parts(World(tmp_path, command="python train.py"))
    silent_for(parts, 11.0)
    last_step_s = parts.world.clock.at_s - 11.0
    parts.world.agents.processes = in_d_state
    outcome = asyncio.run(parts.silent())
    assert 75.0 <= parts.world.clock.at_s - last_step_s < 85.0
    assert isinstance(outcome, ExecutePlan)
    assert outcome.plan.evict == ("n2",)
    assert [s.node for s in outcome.verdict.suspects] == ["n2"]
    assert outcome.failure is not None
    assert parts.log.incident.verdict == outcome.verdict
    assert parts.world.channel is not None
    assert parts.world.channel.orders == []
    assert parts.world.slurm.acts == ["update 1"], "the claim announces the suspicion, and that is all"


def test_a_silence_that_ends_is_no_news(tmp_path: Path) -> None:
    """Training moves again between two captures: nothing is decided, the incident closes, the suspicion is counted."""
    parts = Parts(World(tmp_path, command="python train.py"))
    world = parts.world
    silent_for(parts, 11.0)
    began_s = world.clock.at_s
    world.clock.on_sleep = lambda: world.steps(20) if world.clock.at_s > began_s + 1 else None
    assert asyncio.run(parts.silent()) is None
    assert parts.log.current is None
    assert world.text("cleared") == "training moves again; nothing was done"
    assert world.incidents[0]["outcome"] == "It went on by itself; nothing was done."
    assert parts.attempt.quiet_until_s > world.clock.at_s


def test_what_is_waited_for_is_said_again(tmp_path: Path) -> None:
    """However long nothing changes: at least every 75 s, with how long there has been no progress."""
    parts = Parts(World(tmp_path, command="python train.py", supervise={"action_limit_s": LIMIT_S}))
    silent_for(parts, 11.0)
    asyncio.run(parts.silent())
    told = [event for event in parts.world.story if event["kind"] == "waiting"]
    times = [event["at_s"] for event in told]
    assert all(after - before < 75.0 for before, after in pairwise(times))
    assert times[-1] - times[0] > LIMIT_S - 90.0
    assert told[-1]["text"].startswith("no progress for 5")


@pytest.mark.parametrize("ending", ["srun", "rank", "launcher"])
def test_an_exit_ends_the_silence(tmp_path: Path, ending: str) -> None:
    """It is handled next; that training moves again is not said."""
    parts = Parts(World(tmp_path, command="python train.py"))
    world = parts.world
    assert world.channel is not None
    silent_for(parts, 11.0)

    def ends() -> None:
        assert world.channel is not None
        if ending == "srun":
            world.channel.ended = 1
        elif ending == "rank":
            parts.exit_of(1, code=3)
        else:
            world.channel.gone.set()

    world.clock.on_sleep = ends
    assert asyncio.run(parts.silent()) is None
    assert parts.log.current is None
    assert ("cleared" in world.kinds) is (ending == "launcher")


def test_observe_mode_returns_nothing_to_execute(tmp_path: Path) -> None:
    """The plan is reported to the daemon as one that nobody carries out, and the silence is left alone for long."""
    parts = Parts(World(tmp_path, command="python train.py", config=Config(mode=Mode.OBSERVE)))
    silent_for(parts, 11.0)
    parts.world.agents.processes = in_d_state
    assert asyncio.run(parts.silent()) is None
    assert "observe mode: would take" in parts.world.text("observed")
    assert (parts.world.job.claim.mode, parts.world.job.claim.suspects) == ("observe", ())
    assert parts.world.job.claim.evict == ("n2",)
    limit_s = parts.world.session.settings.action_limit_s
    assert parts.attempt.quiet_until_s == pytest.approx(parts.world.clock.at_s + limit_s)
    assert parts.log.current is None


def proven(parts: Parts) -> object:
    """What comes of a hang that quiet captures have proven."""
    silent_for(parts, 11.0)
    world = parts.world
    world.agents.processes = in_d_state
    quiet = Investigation(world.session, parts.attempt)

    async def told() -> object:
        for _ in range(3):
            await quiet.capture(keep=False)
            world.clock.at_s += 4.2
        signal = Signal(SignalKind.SILENCE, world.clock.at_s, "stacks", "its stacks do not move")
        text = "silence suspected: its stacks do not move"
        found = ProvenSuspicion(quiet, 77.0, text, signal, silent_s=100.0)
        outcome = await parts.handler.proven(parts.attempt, parts.start, found)
        await asyncio.gather(*world.job._tasks)  # the claim is written beside it
        return outcome

    return asyncio.run(told())


def test_a_proven_hang_about_which_nobody_may_act_is_one_incident_until_the_limit(tmp_path: Path) -> None:
    """A step that is not ours, in a job that may not be requeued: people are told once, and not every two minutes."""
    parts = Parts(World(tmp_path, attached=AttachedStep("0"), job={"requeueable": False}))
    assert proven(parts) is None
    claim, clock = parts.world.job.claim, parts.world.clock
    assert (claim.road, claim.suspected_at_s > 0) == ("alert_only", True)
    assert parts.attempt.quiet_until_s == pytest.approx(clock.at_s + parts.world.session.settings.action_limit_s)


def test_a_proven_suspicion_goes_on_with_the_quiet_captures(tmp_path: Path) -> None:
    """The incident is opened with its signal, one capture is added to theirs, and that is enough for a plan."""
    parts = Parts(World(tmp_path, command="python train.py"))
    outcome, world = proven(parts), parts.world
    assert isinstance(outcome, ExecutePlan)
    assert outcome.plan.evict == ("n2",)
    assert parts.log.incident.times["fault"] == 77.0
    assert [x.source for x in parts.log.incident.signals] == ["stacks"]
    assert world.kinds.count("captured") == 1


def test_an_attached_step_whose_srun_has_ended_is_left_alone(tmp_path: Path) -> None:
    """The script has gone on: there is no step to recover, whatever the plan says."""
    step = AttachedStep("0")
    parts = Parts(World(tmp_path, attached=step))
    parts.world.finds_ranks()
    parts.exit_of(1, code=3)
    step._gone = True
    assert asyncio.run(parts.handler.rank_died(parts.attempt, parts.start)) is None
    assert "no step left" in parts.world.text("note")
    assert parts.attempt.exits == {}
    step._received = "ended 3\n"
    parts.exit_of(1, code=3)
    assert asyncio.run(parts.handler.rank_died(parts.attempt, parts.start)) == Exit(3)


def test_weak_evidence_in_a_step_of_another_srun_is_reported_when_it_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step is not ours to start again, so a person has to know, and not only at the action limit."""
    weak = Verdict(Conclusion.CULPRIT, "rank 1 on n2 sleeps", corroborated=True, grade=Grade.WEAK)
    monkeypatch.setattr(Investigation, "judge", lambda _: weak)
    parts = Parts(World(tmp_path))
    world = parts.world
    silent_for(parts, 11.0)
    last_step_s, reported_s = world.clock.at_s - 11.0, []

    async def report(*_: object) -> None:
        reported_s.append(world.clock.at_s - last_step_s)

    monkeypatch.setattr(world.session.job, "report", report)
    world.clock.on_sleep = lambda: world.steps(20) if world.clock.at_s > last_step_s + 500.0 else None
    assert asyncio.run(parts.silent()) is None
    assert len(reported_s) == 1
    assert 300.0 <= reported_s[0] < 400.0


NAMED = Verdict(
    Conclusion.CULPRIT, "rank 1 on n2 stands", (Suspect("n2", (1,), 0.75, "stands"),), missing=("evidence below",)
)
BUSY = Verdict(Conclusion.UNDETERMINED, "rank 1 on n2 is busy: slow, or an endless loop", missing=(ENDLESS,))
SAVES = Verdict(Conclusion.CULPRIT, "rank 1 on n2 saves", (Suspect("n2", (1,), 0.3, "in save"),), missing=("more",))
MOVES = Verdict(Conclusion.NONE, "rank 1 moves")
NOBODY = Verdict(Conclusion.UNDETERMINED, "no rank waits in a collective: 2 of 2 are in user code")


OWN = [["main", "/home/u/train.py", 9], ["receive_all", "/home/u/train.py", 5]]
"""A function of the program's own, in which it waits for its peers."""


def waiting(rank: int) -> list[dict[str, Any]]:
    """The processes of a rank that uses no processor."""
    return [{"pid": 100 + rank, "cpu_s": 1.0, "io_bytes": 1, "state": "S", "stack": "own"}]


def working(busy: Container[int]) -> Callable[[int], list[dict[str, Any]]]:
    """The same, but these ranks compute from one capture to the next."""
    spent_s = count(0.0, 60.0)
    return lambda rank: [{**waiting(rank)[0], "cpu_s": next(spent_s)}] if rank in busy else waiting(rank)


def told_of(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    verdict: Verdict,
    until_s: float,
    *,
    mode: Mode,
    pause_s: float = 0.0,
    processes: Callable[[int], list[dict[str, Any]]] = lambda rank: [],
) -> tuple[Parts, list[tuple[float, Claim]]]:
    """The claims that report something, each with the silence by then; training moves after `until_s`."""
    parts = Parts(World(tmp_path, command="python train.py", config=Config(mode=mode)))
    monkeypatch.setattr(Investigation, "judge", lambda _: parts.log.set_verdict(verdict) or verdict)
    world, found = parts.world, []
    silent_for(parts, 11.0)
    world.agents.processes = processes
    world.agents.stacks = {"own": [{"name": "MainThread", "main": True, "os_thread_id": 1, "frames": OWN}]}
    parts.attempt.pauses = Pauses({"train": pause_s})
    last_step_s = world.clock.at_s - 11.0

    def look() -> None:
        if world.job.claim.road and not found:
            found.append((world.clock.at_s - last_step_s, world.job.claim))
        if world.clock.at_s > last_step_s + until_s:
            world.steps(20)

    world.clock.on_sleep = look
    assert asyncio.run(parts.silent()) is None
    return parts, found


@pytest.mark.parametrize("mode", [Mode.ACT, Mode.OBSERVE])
@pytest.mark.parametrize("verdict", [NAMED, BUSY])
def test_a_hang_that_is_named_but_not_proven_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Mode, verdict: Verdict
) -> None:
    """Once it has lasted as long as weak evidence is given: in the claim, with the time at which something is done.

    Both are taken back as soon as training moves.
    """
    parts, ((silent_s, claim),) = told_of(tmp_path, monkeypatch, verdict, 900.0, mode=mode)
    assert 300.0 <= silent_s < 430.0
    assert (claim.road, claim.mode, claim.why.partition(" (")[0]) == (
        "alert_only",
        mode.value,
        f"waiting: {verdict.reason}",
    )
    assert claim.suspected_at_s > 0
    assert claim.acts_at_s == pytest.approx(parts.world.clock.at_s - 900.0 + 1800.0, abs=5)
    (note,) = [event["text"] for event in parts.world.story if event["kind"] == "note"]
    assert ("nothing is done before " in note) is (mode is Mode.ACT)
    assert "srobust stacks 1. To start the job anew now: scontrol requeue 1" in note
    assert (parts.world.job.claim.suspected_at_s, parts.world.job.claim.acts_at_s) == (0, 0)


@pytest.mark.parametrize(
    ("verdict", "until_s", "pause_s"), [(NAMED, 280.0, 0.0), (NAMED, 580.0, 200.0), (SAVES, 900.0, 0), (MOVES, 900, 0)]
)
def test_a_pause_that_may_be_healthy_is_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verdict: Verdict, until_s: float, pause_s: float
) -> None:
    """A short one; one that is no three times as long as one that was healthy; a long save; ranks that move."""
    parts, found = told_of(tmp_path, monkeypatch, verdict, until_s, mode=Mode.ACT, pause_s=pause_s)
    assert found == []
    assert "note" not in parts.world.kinds


LOOPS = Verdict(Conclusion.NONE, "no rank waits for another, and rank 0 moves (most ranks are in user)")


@pytest.mark.parametrize(
    ("verdict", "busy", "times"), [(NOBODY, (), 1), (LOOPS, (0,), 1), (LOOPS, (0, 1), 0), (LOOPS, (), 0)]
)
def test_a_hang_in_which_nobody_can_be_named_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verdict: Verdict, busy: tuple[int, ...], times: int
) -> None:
    """All ranks wait for each other by sockets of their own, or one computes at one place and the others wait.

    A job that computes on most ranks works, and one whose ranks are all suspended waits for whoever did that.
    """
    parts, found = told_of(tmp_path, monkeypatch, verdict, 900.0, mode=Mode.ACT, processes=working(busy))
    assert len(found) == times
    assert all(300.0 <= silent_s < 430.0 for silent_s, _ in found)
    assert ("nothing is done before" in parts.world.text("note")) is bool(times)


def test_a_rank_that_is_gone_makes_it_another_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its capture has no process, before and after: nothing of that kind is told, and nothing breaks."""
    _, found = told_of(
        tmp_path, monkeypatch, NOBODY, 900.0, mode=Mode.ACT, processes=lambda rank: waiting(rank) if rank else []
    )
    assert found == []


def test_two_sruns_at_once_are_the_reason_why_nothing_is_done(tmp_path: Path) -> None:
    """And not the mode, which is act."""
    lock = SupervisorLock("fake-beside", "1")
    later = SupervisorLock("fake-beside", "1")
    assert lock.claim()
    assert not later.claim()
    parts = Parts(World(tmp_path, command="python train.py", lock=lock))
    silent_for(parts, 11.0)
    parts.world.agents.processes = in_d_state
    assert asyncio.run(parts.silent()) is None
    later.release()
    lock.release()
    assert parts.world.text("observed").startswith("several sruns of the job run at once: would take ")
