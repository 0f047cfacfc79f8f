"""Each vote of the judge: a scene that it alone gets right, and one in which by itself it would be wrong.

*Alone right*: the judge is right, and without this vote it is not. *Alone wrong*: what this vote says by itself is
wrong, and the judge, who weighs all of them, is right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from localize_scenes import (
    ALL_REDUCE,
    EVALUATE,
    MAIN,
    USER,
    USER_LOCK,
    WORKER_LOCK,
    capture,
    evidence,
    frames,
    in_loader,
    process,
    rank,
    repeated,
    signal,
    waiting,
)
from parallel_scenes import BYTEROBUST, ORDER, SIZES, evidence_of, job
from recorder_dumps import TENSOR, WORLD, dump, entry

from slurm_robust.core.model import Conclusion, Signal, SignalKind, Verdict
from slurm_robust.localize import judge as judging
from slurm_robust.localize.evidence import Evidence, RankCapture, RankExit
from slurm_robust.localize.judge import judge
from slurm_robust.localize.layout import fit, groups_of
from slurm_robust.localize.ras import CommunicatorMember, Lag, RasView
from slurm_robust.localize.recorder.dump import ProcessGroup, RankDump

FOUR = {n: f"n{n}" for n in range(4)}
LOST = ("RuntimeError: [../gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.1]:41234",)

Said = tuple[Conclusion, tuple[str, ...]]
"""A conclusion, and the nodes at the head of its list."""


def names(*nodes: str) -> Said:
    """These are at fault."""
    return Conclusion.CULPRIT, nodes


NOBODY: Said = (Conclusion.NONE, ())
UNDETERMINED: Said = (Conclusion.UNDETERMINED, ())


def said(verdict: Verdict | None) -> Said | None:
    """What a verdict says; of several suspects only those that may be left."""
    if verdict is None:
        return None
    return verdict.conclusion, tuple(s.node for s in verdict.suspects if s.confidence > 0.2)


def ended(number: int, code: int | None = None, died_of: int = 0, *lines: str, at_s: float = 1000.0) -> RankExit:
    """A rank's end."""
    return RankExit(number, f"n{number}", at_s, code, died_of, lines)


def victims() -> list[RankExit]:
    """All of four but the first lost a peer."""
    return [ended(n, 1, 0, *LOST) for n in (1, 2, 3)]


def others(*without: int) -> list[RankCapture]:
    """Those of four that wait in one collective."""
    return [waiting(n) for n in range(4) if n not in without]


def stepping(*ranks: RankCapture, at: int = 0) -> Evidence:
    """Captured twice; in between the rank `at` completed a step."""
    later = [replace(r, progress=replace(r.progress, step=21)) if r.rank == at and r.progress else r for r in ranks]
    return evidence(capture(1000.0, *ranks), capture(1005.0, *later))


def recorded(absent: int) -> dict[int, RankDump]:
    """All of four wait in a collective that one never joined."""
    sizes = {WORLD: [0, 1, 2, 3]}
    found = {r: dump(r, [entry(10, 5)], {0: (5, 4)}, sizes) for r in range(4) if r != absent}
    return {**found, absent: dump(absent, [entry(9, 4, state="completed")], {0: (4, 4)}, sizes)}


def without_dump(*absent: int) -> dict[int, RankDump]:
    """The same, and those that never joined left no dump."""
    return {r: found for r, found in recorded(absent[0]).items() if r not in absent}


def circle() -> dict[int, RankDump]:
    """0 waits for 1 in the world, 1 for 0 in their own group: each holds the other. The program's groups are there."""
    sizes = {WORLD: list(range(32)), TENSOR: [0, 1]}
    found = {
        0: dump(0, [entry(10, 5)], {0: (5, 4), 1: (2, 2)}, sizes),
        1: dump(1, [entry(11, 3, group=TENSOR, number=1)], {0: (4, 4), 1: (3, 2)}, sizes),
    }
    made = groups_of(fit(SIZES, ORDER, 32)).all
    own = {f"{g.kind}{n}": ProcessGroup(f"{g.kind}{n}", g.kind, g.ranks) for n, g in enumerate(made)}
    return {r: replace(one, groups={**one.groups, **own}) for r, one in found.items()}


def lagging(number: int) -> tuple[RasView, ...]:
    """NCCL says twice that one rank launched an operation less than its peers."""
    lag = Lag(
        "cafe", 4, "AllReduce", 50, ((CommunicatorMember(number, f"10.0.0.{number}", 100 + number), 49),), True, ()
    )
    return RasView(1000.0, (), (lag,)), RasView(1005.0, (), (lag,))


def counted() -> tuple[RasView, ...]:
    """NCCL says twice that one rank launched an operation less than its peers, and not which."""
    lag = Lag("cafe", 4, "AllReduce", 50, (), False, ())
    return RasView(1000.0, (), (lag,)), RasView(1005.0, (), (lag,))


def processes() -> list[RankCapture]:
    """Four ranks at one place, each a process of its own."""
    return [rank(n, process(ALL_REDUCE, 100 + n)) for n in range(4)]


def apart(number: int) -> RankCapture:
    """A rank in the program, where no other is."""
    return rank(number, process(frames(*MAIN, f"work{number} /home/u/train.py:{60 + number}")))


def gone(*numbers: int) -> list[RankCapture]:
    """Ranks of one node whose processes are no more."""
    return [rank(n, node="n1") for n in numbers]


def left_behind() -> dict[int, RankDump]:
    """All of four enqueued one reduction, and three have completed it."""
    sizes = {WORLD: [0, 1, 2, 3]}
    return {**{r: dump(r, [], {0: (5, 5)}, sizes) for r in (0, 1, 2)}, 3: dump(3, [entry(10, 5)], {0: (5, 4)}, sizes)}


def computing(*signals: Signal) -> Evidence:
    """One computes at one line for seventy seconds, and all others wait for it."""
    looks = (capture(1000.0 + t, *others(1), rank(1, process(USER, state="R", cpu_s=t))) for t in range(0, 80, 10))
    return evidence(*looks, signals=signals)


RENDEZVOUS = frames("main /home/u/train.py:9", "init_process_group torch/distributed/distributed_c10d.py:1800")
STARTING = tuple(capture(1000.0 + 10 * t, *(waiting(n, RENDEZVOUS) for n in range(3))) for t in range(3))
XID = [signal(SignalKind.NODE_FAULT, "n2", "XID 79")]
STOPPED = rank(1, process(USER, state="T"))
HANGS = in_loader(1, process(WORKER_LOCK))
EVALUATES = rank(0, process(frames(*MAIN, "evaluate /home/u/train.py:44")))
SILENT = [capture(t, *others(2), missing=["n2"]) for t in (1000.0, 1010.0, 1020.0)]
ALONE = repeated(rank(0, process(frames(*MAIN, "read /home/u/train.py:9"), state="D")), times=4, every_s=45.0)

Scene = tuple[Evidence, Said]
RIGHT: dict[str, Scene] = {
    # Both ranks of a node are gone without an exit code; another node's rank has vanished with them.
    "judge_lost_all": (
        evidence(
            *(capture(t, waiting(0), waiting(3), *gone(1, 2)) for t in (1000.0, 1005.0)),
            exits=[RankExit(n, "n1", 999.0) for n in (1, 2)] + [RankExit(4, "n4", 999.5)],
            nodes={0: "n0", 1: "n1", 2: "n1", 3: "n3", 4: "n4"},
        ),
        names("n1"),
    ),
    # One rank was killed; nothing was captured.
    "judge_exits": (Evidence(4, FOUR, exits=(ended(2, None, 9),)), names("n2")),
    # One stands outside the collective that others wait in; meanwhile another completes a step.
    "judge_progress": (stepping(*others(3), rank(3, process(USER_LOCK))), NOBODY),
    # Nobody waits for anybody, and one is stopped.
    "judge_stops_with_recorder": (evidence(capture(1000.0, STOPPED, *(apart(n) for n in (0, 2, 3)))), names("n1")),
    # All stand at one place, and only the recorders know who never came there.
    "judge_recorder": (replace(repeated(*others()), recorder=recorded(1)), names("n1")),
    # The same, and only NCCL's service knows.
    "judge_ras_with_stacks": (replace(repeated(*processes()), ras=lagging(2)), names("n2")),
    # One is outside the collective that all others wait in, held by its loader; a node with a fault waits like all.
    "judge_outside": (repeated(*others(1), HANGS, times=3, signals=XID), names("n1")),
    # No word from one node, while all others wait.
    "judge_silence": (evidence(*SILENT, nodes=FOUR), names("n2")),
    # All wait at one place, and one node reports a fault.
    "judge_faults": (repeated(*others(), signals=XID), names("n2")),
    # Most ended because a peer was gone: where the rest stands now tells of that, not of the fault.
    "judge_lost_peers": (
        replace(evidence_of(job(BYTEROBUST)), exits=tuple(replace(e, node="m00") for e in victims())),
        UNDETERMINED,
    ),
    # Three wait in the rendezvous for one that has no process.
    "judge_never_started": (evidence(*STARTING, nodes=FOUR), names("n3")),
    # It uses a processor in one function for more than a minute, and no recorder was there.
    "judge_endless_work": (computing(), names("n1")),
    # No other rank waits for it, and the kernel shows that it is held.
    "judge_alone": (ALONE, names("n0")),
    # All stand at one place, and one has not completed what the others have.
    "judge_left_behind": (replace(repeated(*others()), recorder=left_behind()), names("n3")),
    # The recorders show a circle: where the stacks' waiting seems to end is not the beginning of it.
    "judge_recorder_undecided": (replace(evidence_of(job(BYTEROBUST)), recorder=circle()), UNDETERMINED),
    # NCCL counts who is behind and names nobody: the group in which the stacks' waiting seems to end may be another.
    "judge_ras_undecided": (replace(evidence_of(job(BYTEROBUST)), ras=counted()), UNDETERMINED),
    # All wait, and the layout tells for whom.
    "judge_groups": (evidence_of(job(BYTEROBUST)), names("m15")),
    # One is in an evaluation and gets on with it.
    "judge_waiting": (
        evidence(capture(1000.0, *others(0), rank(0, process(EVALUATE))), capture(1005.0, *others(0), EVALUATES)),
        NOBODY,
    ),
}
WRONG: dict[str, Scene] = {
    # The ranks of a node finished a moment before the others, which get on with their last step.
    "judge_lost_all": (
        replace(
            stepping(waiting(0), *gone(1, 2)),
            exits=tuple(RankExit(n, "n1", 999.0) for n in (1, 2)),
            rank_nodes={0: "n0", 1: "n1", 2: "n1"},
        ),
        NOBODY,
    ),
    # One has left early and well; what holds the others is a hung loader.
    "judge_exits": (
        evidence(*(capture(t, *others(1, 3), HANGS) for t in (1000.0, 1005.0, 1010.0)), exits=[ended(3)], nodes=FOUR),
        names("n1"),
    ),
    # A step was completed, and then a rank was killed.
    "judge_progress": (replace(stepping(*others()), exits=(ended(2, None, 9, at_s=1004.0),)), names("n2")),
    # Stopped for a moment, as some profilers do: others complete steps.
    "judge_stops_with_recorder": (stepping(*others(1), STOPPED), NOBODY),
    # The recorders' word is from before the step that was completed.
    "judge_recorder": (replace(stepping(*others()), recorder=recorded(1)), NOBODY),
    "judge_ras_with_stacks": (replace(stepping(*processes()), ras=lagging(2)), NOBODY),
    # One sleeps in the program, for another reason: the recorder knows whom all wait for.
    "judge_outside": (replace(repeated(*others(1), HANGS), recorder=recorded(2)), names("n2")),
    # An agent is gone, its rank is not what the others wait for.
    "judge_silence": (
        evidence(*(capture(c.at_s, *others(1, 2), HANGS, missing=["n2"]) for c in SILENT), nodes=FOUR),
        names("n1"),
    ),
    # A fault of these minutes on one node, and a hung loader on another.
    "judge_faults": (repeated(*others(1), HANGS, times=3, signals=XID), names("n1")),
    # All that ended were victims, and one that did not end is stopped.
    "judge_lost_peers": (evidence(*(capture(t, STOPPED) for t in (1000.0, 1005.0)), exits=victims()[1:]), names("n1")),
    # Three wait in the rendezvous for one that has no process; a node has fallen off its bus meanwhile.
    "judge_never_started": (evidence(*STARTING, nodes=FOUR, signals=XID), names("n2")),
    # The same: it may compute because its peer's GPU is gone.
    "judge_endless_work": (computing(*XID), names("n2")),
    # It was held when it was captured, and has raised an error since.
    "judge_alone": (
        replace(ALONE, exits=(ended(0, 1, 0, "Traceback (most recent call last):", "ValueError: bad shape"),)),
        (Conclusion.USER_CODE, ()),
    ),
    # The link of another node is broken, so that one is left behind.
    "judge_left_behind": (replace(repeated(*others(), signals=XID), recorder=left_behind()), names("n2")),
    # The one that all wait for has left no dump, and its stack tells.
    "judge_recorder_undecided": (replace(repeated(*others(1), HANGS, times=3), recorder=without_dump(1)), names("n1")),
    # The recorders know who it is that NCCL only counts.
    "judge_ras_undecided": (replace(repeated(*others()), recorder=recorded(3), ras=counted()), names("n3")),
    # The waiting seems to end in one group; a node of another has fallen off its bus.
    "judge_groups": (
        replace(evidence_of(job(BYTEROBUST)), node_signals=(signal(SignalKind.NODE_FAULT, "m03", "XID 79"),)),
        names("m03"),
    ),
    # Stacks show all at one place.
    "judge_waiting": (replace(repeated(*others()), recorder=recorded(3)), names("n3")),
}
VOTES = {vote.__name__: vote for vote in judging.VOTES}


def test_each_vote_has_both() -> None:
    """A new vote comes with its two scenes."""
    assert list(RIGHT) == list(WRONG) == list(VOTES)


@pytest.mark.parametrize("vote", RIGHT)
def test_alone_right(vote: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With it the judge is right, without it not."""
    scene, truth = RIGHT[vote]
    assert said(VOTES[vote](scene)) == truth
    assert said(judge(scene)) == truth
    left: Sequence[Callable[[Evidence], Verdict | None]] = [v for name, v in VOTES.items() if name != vote]
    monkeypatch.setattr(judging, "VOTES", tuple(left))
    assert said(judge(scene)) != truth


@pytest.mark.parametrize("vote", WRONG)
def test_alone_wrong(vote: str) -> None:
    """By itself it says something else, or another node; the judge is right."""
    scene, truth = WRONG[vote]
    alone = said(VOTES[vote](scene))
    assert alone is not None, "it has something to say"
    assert alone != truth
    assert said(judge(scene)) == truth
