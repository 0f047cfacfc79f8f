"""A rank that a signal has stopped is continued once, if it holds the job up and nothing speaks against its node."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from handler_parts import Parts
from supervised import WAITS, World

from slurm_robust.config.site import Config
from slurm_robust.core.model import Mode
from slurm_robust.marks.node_findings import NodeFinding
from slurm_robust.supervise.agent.messages import NodeFindings, RankState
from slurm_robust.supervise.agent.stopped_messages import ContinueRank, RankContinued
from slurm_robust.supervise.incident.quiet_captures import QuietCaptures
from slurm_robust.supervise.lineage.attempt_start import AttemptStart
from slurm_robust.supervise.lineage.lineage_store import LineageStore
from slurm_robust.supervise.watch.attempt_state import AttemptState
from slurm_robust.supervise.watch.observer import Observer
from slurm_robust.supervise.watch.stopped_ranks import StoppedRank, to_continue

NODES = ("n1", "n2", "n3", "n4")
ONE = StoppedRank(2, "n3", 102, 31.0)


def test_a_minority_that_is_stopped_for_long_enough_is_continued() -> None:
    """Both the silence and the stop have to last; half of the ranks may be stopped, more are a suspended job."""
    two = StoppedRank(1, "n2", 101, 40.0)
    three = StoppedRank(0, "n1", 100, 40.0)
    assert to_continue([ONE], 4, 31.0, 30.0, ()) == [ONE]
    assert to_continue([ONE, two], 4, 31.0, 30.0, ()) == [ONE, two]
    assert to_continue([ONE, two, three], 4, 31.0, 30.0, ()) == []
    assert to_continue([ONE], 1, 31.0, 30.0, ()) == []
    assert to_continue([ONE], 4, 29.0, 30.0, ()) == []
    assert to_continue([StoppedRank(2, "n3", 102, 29.0), two], 4, 60.0, 30.0, ()) == [two]


def test_zero_a_debugger_and_a_faulty_node_continue_nothing() -> None:
    """0 switches it off; somebody looks at a traced rank; a node with a fault is a matter for the judge."""
    assert to_continue([ONE], 4, 9e9, 0.0, ()) == []
    assert to_continue([StoppedRank(2, "n3", 102, 31.0, traced=True)], 4, 31.0, 30.0, ()) == []
    assert to_continue([ONE], 4, 31.0, 30.0, {"n3"}) == []


class Stage:
    """Four ranks that have trained for twenty steps, and the observer of their attempt."""

    def __init__(self, folder: Path, **more: Any) -> None:
        self.world = World(folder, command="python train.py", nodes=NODES, **more)
        self.attempt: AttemptState = self.world.attempt()
        self.observer = Observer(self.world.session)
        self.world.finds_ranks(4)
        for step in range(20):
            self.world.clock.at_s += 1.0
            self.world.steps(step, ranks=4)

    def reports(self, state: str, rank: int = 2, pid: int = 0) -> None:
        """The agent reports the state of a rank's process, its main one by default."""
        self.world.session.receive(RankState(f"n{rank + 1}", rank, state, pid or 100 + rank))

    def passes(self, seconds: float) -> list[ContinueRank]:
        """Time passes, and the observer polls; returns what agents were asked to continue in all."""

        async def polled() -> None:
            for _ in range(int(2 * seconds)):
                await self.observer.poll(self.attempt)
                self.world.clock.at_s += 0.5

        asyncio.run(polled())
        return [message for message in self.world.agents.sent if isinstance(message, ContinueRank)]

    def answers(self, refused: str = "") -> None:
        """The agent answers."""
        self.world.session.receive(RankContinued("n3", 2, 102, refused))


def test_it_is_continued_once_and_the_story_says_so(tmp_path: Path) -> None:
    """It is asked for after half a minute; where it stops again nothing more is done; no healthy pause is learnt."""
    stage = Stage(tmp_path)
    stage.reports("T")
    assert stage.passes(29.5) == []
    assert stage.passes(1.0) == [ContinueRank("n3", 2, 102)]
    stage.answers()
    stage.passes(0.5)
    assert stage.world.text("continued") == (
        "rank 2 on n3 was stopped by a signal for 30 s and nobody traces it: it was continued (SIGCONT)"
    )
    assert stage.observer.stopped_ranks.continued_since(stage.world.clock.at_s - 5.0) == [2]
    stage.reports("")
    stage.world.steps(21, ranks=4)
    stage.passes(1.0)
    assert stage.attempt.pauses.longest_s == {"startup": 20.0}, "nothing is learnt from the half minute of the stop"
    assert stage.attempt.fleet.steps.p99_s() < 5.0
    stage.reports("T")
    assert len(stage.passes(120.0)) == 1
    assert not stage.observer.stopped_ranks.to_be_continued(stage.attempt.fleet)


@pytest.mark.parametrize("mode", list(Mode))
def test_a_hang_of_a_stopped_rank_says_that_it_will_be_continued_and_when(tmp_path: Path, mode: Mode) -> None:
    """Long before the rest; in observe mode nothing will be done, and that is said."""
    world = World(tmp_path, command="python train.py", config=Config(mode=mode))
    parts = Parts(world)
    world.finds_ranks()
    world.trains()
    world.clock.at_s += 11.0
    stacked = {"state": "S", "stack": "waits"}
    world.agents.processes = lambda rank: [
        {"pid": 100 + rank, "cpu_s": 1.0, "io_bytes": 1, **({"state": "T"} if rank == 1 else stacked)}
    ]
    world.session.receive(RankState("n2", 1, "T", 101))

    def ends() -> None:
        if "waiting" in world.kinds:
            world.steps(21)

    world.clock.on_sleep = ends
    assert asyncio.run(parts.silent()) is None
    continued = "continued (SIGCONT) after 30 s without progress; if that does not help, acted on after 300 s"
    begin = "observe mode: nothing is done; in mode act: " if mode is Mode.OBSERVE else ""
    assert f"({begin}{continued} without progress)" in world.text("waiting")


def test_a_request_that_nobody_answers_is_repeated_twice(tmp_path: Path) -> None:
    """The agent of its node may be away for a moment; it is not asked for ever."""
    stage = Stage(tmp_path)
    stage.reports("T")
    assert len(stage.passes(120.0)) == 3
    assert "continued" not in stage.world.kinds


def test_a_refusal_is_told_and_ends_it(tmp_path: Path) -> None:
    """The agent has looked again, and knows better."""
    stage = Stage(tmp_path)
    stage.reports("T")
    stage.passes(30.5)
    stage.answers("process 102 is held by a debugger")
    assert len(stage.passes(60.0)) == 1
    said = "rank 2 on n3 was stopped by a signal for 30 s: it is not continued, process 102 is held by a debugger"
    assert stage.world.text("note") == said


@pytest.mark.parametrize("why", ["steps go on", "a helper", "a debugger", "a fault of its node", "srun has ended"])
def test_it_is_left_alone(tmp_path: Path, why: str) -> None:
    """What may be by design, and what is somebody else's matter."""
    stage = Stage(tmp_path)
    assert stage.world.channel is not None
    if why == "a fault of its node":
        finding = NodeFinding(1, stage.world.clock.at_s, "kmsg", "xid", "if_repeated", "XID 13", (), "", 13)
        stage.world.session.receive(NodeFindings("n3", (finding,)))
    stage.world.channel.ended = 1 if why == "srun has ended" else None
    stage.reports("t" if why == "a debugger" else "T", pid=900 if why == "a helper" else 0)
    for step in range(20, 80):
        if why == "steps go on":
            stage.world.steps(step, ranks=4)
        assert stage.passes(1.0) == []


def test_observe_mode_says_once_what_would_be_done(tmp_path: Path) -> None:
    """No agent is asked for anything."""
    stage = Stage(tmp_path, config=Config(mode=Mode.OBSERVE))
    stage.reports("T")
    assert stage.passes(90.0) == []
    said = [line["text"] for line in stage.world.story if line["kind"] == "note"]
    assert said == [
        "rank 2 on n3 was stopped by a signal for 30 s and nobody traces it: mode act would continue it (SIGCONT)"
    ]


@pytest.mark.parametrize("first", ["state", "steps"])
def test_a_stop_that_somebody_else_ends_is_no_healthy_pause(tmp_path: Path, first: str) -> None:
    """Else the next one would be suspected after three times as long only."""
    stage = Stage(tmp_path, config=Config(mode=Mode.OBSERVE))
    stage.reports("T")
    stage.passes(90.0)
    if first == "state":
        stage.reports("")
        stage.passes(0.5)
    stage.world.steps(21, ranks=4)
    stage.passes(1.0)
    stage.reports("")
    stage.passes(1.0)
    assert max(stage.attempt.pauses.longest_s.values()) <= 20.0
    assert stage.attempt.fleet.steps.p99_s() < 5.0


def test_an_answer_that_nobody_asked_for_is_dropped(tmp_path: Path) -> None:
    """What comes over the channel is untrusted."""
    stage = Stage(tmp_path)
    stage.answers()
    stage.passes(1.0)
    assert "continued" not in stage.world.kinds


@pytest.mark.parametrize("late_s", [0.0, 1.0])
def test_a_silence_that_ends_so_says_why_it_ended(tmp_path: Path, late_s: float) -> None:
    """The handler polls, too: the rank is continued while the incident is open, which then closes.

    The agent's word may come after the steps of the rank that it continued.
    """
    world = World(tmp_path, command="python train.py")
    parts = Parts(world)
    world.finds_ranks()
    world.trains()
    world.clock.at_s += 11.0
    world.session.receive(RankState("n2", 1, "T", 101))
    parts.observer.stopped_ranks.poll(parts.attempt.fleet, parts.attempt.last_sign_s)

    went_on_at_s: list[float] = []

    def answer() -> None:
        if not any(isinstance(message, ContinueRank) for message in world.agents.sent):
            return
        if not went_on_at_s:
            world.steps(21)
            went_on_at_s.append(world.clock.at_s)
        if world.clock.at_s >= went_on_at_s[0] + late_s:
            world.session.receive(RankContinued("n2", 1, 101))
            world.session.receive(RankState("n2", 1, "", 101))

    world.clock.on_sleep = answer
    assert asyncio.run(parts.silent()) is None
    said = "rank 1 had been stopped by a signal, until we sent SIGCONT"
    assert world.text("cleared") == f"training moves again; {said}"
    assert world.incidents[0]["outcome"] == f"It went on; {said}."


@pytest.mark.parametrize(
    ("kind", "cpu_share", "is_continued"),
    [("others wait", 0.0, True), ("others train in a collective", 1.0, False), ("others work", 0.0, False)],
)
def test_in_a_job_that_reports_nothing_others_have_to_be_seen_waiting(
    tmp_path: Path, kind: str, cpu_share: float, is_continued: bool
) -> None:
    """A rank that is stopped by design is left alone while the others work, of which nothing but captures tells."""
    world = World(tmp_path, command="python train.py", nodes=NODES)
    attempt, observer = world.attempt(), Observer(world.session)
    quiet = QuietCaptures(world.session, attempt, AttemptStart(world.session, attempt, LineageStore(world.session)))
    world.finds_ranks(4)

    def processes(rank: int) -> list[dict[str, Any]]:
        stack = {"stack": "waits"} if kind != "others work" else {}
        process = {"pid": 100 + rank, "cpu_s": cpu_share * world.clock.at_s, "io_bytes": 1, "state": "S", **stack}
        return [{**process, "state": "T"} if rank == 2 else process]

    world.agents.stacks, world.agents.processes = WAITS, processes
    world.session.receive(RankState("n3", 2, "T", 102))

    async def passes() -> None:
        for _ in range(240):
            world.clock.at_s += 0.5
            await observer.poll(attempt)
            await quiet.poll()

    asyncio.run(passes())
    asked = [message for message in world.agents.sent if isinstance(message, ContinueRank)]
    assert bool(asked) is is_continued
