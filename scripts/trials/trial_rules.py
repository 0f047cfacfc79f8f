"""Right, acceptable or wrong: what must happen after each fault. Pure; the only place where a trial is judged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

RIGHT, ACCEPTABLE, WRONG = "right", "acceptable", "wrong"

SLOW_S = 180.0
"""A recovery that takes longer is no better than a plain requeue's two minutes, and at most acceptable."""


@dataclass(frozen=True)
class Facts:
    """What happened in one trial. Seconds count from the fault; None: it did not happen.

    Attributes:
        program: Its short name.
        fault: Its short name.
        way: How the job was started, by its short name.
        struck: The fault happened at all; otherwise the trial says nothing.
        fault_node: Its node.
        fault_rank: Its rank, -1 for all.
        fault_step: The step reached at the fault.
        detected: How srobust noticed it, as text.
        suspected_s: When srobust suspected it.
        decided_s: When srobust decided what to do.
        road: The last way back that was taken.
        reason: Why, as srobust's text.
        blamed: Nodes that the verdict names.
        evicted: Nodes that a plan left out.
        taken_out: Nodes that were drained, down or in quarantine at any time.
        acted: srobust did anything to the job.
        captures: How often it captured stacks.
        launches: Launches after the fault.
        strikes: How often a fault inside the program struck.
        begun_at: The first step of each launch after the fault.
        first_new_step_s: When a step beyond `fault_step` was made.
        nodes_after: Nodes of the last launch.
        state: The last state of the job that Slurm showed.
        exit_code: Its exit code as Slurm shows it, `1:0`.
        over: It ended by itself, not because the trial's time was up.
        waited_s: How long it was watched after the fault.
        messages: All of srobust's messages after the fault, for words that must be in them.
    """

    program: str
    fault: str
    way: str
    struck: bool = True
    fault_node: str = ""
    fault_rank: int = -1
    fault_step: int = 0
    detected: str = ""
    suspected_s: float | None = None
    decided_s: float | None = None
    road: str = ""
    reason: str = ""
    blamed: tuple[str, ...] = ()
    evicted: tuple[str, ...] = ()
    taken_out: tuple[str, ...] = ()
    acted: bool = False
    captures: int = 0
    launches: int = 0
    strikes: int = 0
    begun_at: tuple[int, ...] = ()
    first_new_step_s: float | None = None
    nodes_after: tuple[str, ...] = ()
    state: str = ""
    exit_code: str = ""
    over: bool = True
    waited_s: float = 0.0
    messages: str = field(default="", repr=False)


@dataclass(frozen=True)
class Judgement:
    """The word, and why where it is not plainly right."""

    word: str
    why: str = ""


class _Wrong(Exception):  # noqa: N818 (a way out of the rules, no error)
    pass


def judge(facts: Facts) -> Judgement:
    """By the rules of the fault."""
    if not facts.struck:
        return Judgement(
            WRONG, f"the trial failed: the fault never came about (the job: {facts.state} {facts.exit_code})"
        )
    try:
        doubts = _RULES[facts.fault](facts)
    except _Wrong as wrong:
        return Judgement(WRONG, str(wrong))
    return Judgement(ACCEPTABLE, "; ".join(doubts)) if doubts else Judgement(RIGHT)


def _clean(f: Facts) -> list[str]:
    """It ends as if nobody watched."""
    if f.acted:
        raise _Wrong(f"nothing was broken, and it was acted on: {f.road} {f.reason}")
    if f.taken_out:
        raise _Wrong(f"nothing was broken, and {', '.join(f.taken_out)} went out of service")
    _completed(f)
    return []


def _passing(f: Facts) -> list[str]:
    """One rank is broken once: its node is named, nobody else's suffers, and training goes on."""
    doubts = _others_unharmed(f) + _goes_on(f)
    if f.fault_node not in (*f.blamed, *f.evicted):
        doubts.append(f"{f.fault_node} was not named")
    return doubts


def _stopped(f: Facts) -> list[str]:
    """No node is at fault if somebody stops a rank: it is continued, or at worst started once more."""
    suffered = sorted({*f.evicted, *f.taken_out})
    if suffered:
        raise _Wrong(f"a rank was stopped by a signal, and {', '.join(suffered)} suffered for it")
    return _goes_on(f) + (["it was started once more"] if f.launches else [])


def _own_error(f: Facts) -> list[str]:
    """It stops with its own exit code, at the second time at the latest, and no node is blamed."""
    _no_node(f)
    if not f.over:
        raise _Wrong(f"it had not stopped {f.waited_s:.0f} s after its own error")
    if f.state == "COMPLETED":
        raise _Wrong("the program failed, and the job is called completed")
    if f.launches > 1:
        raise _Wrong(f"it was started {f.launches} times more with the same error")
    if f.exit_code.split(":")[0] in ("0", "75", "93"):
        raise _Wrong(f"it ended with {f.exit_code}, which is not the program's own exit code")
    return ["it was started once more"] if f.launches else []


def _bad_node(f: Facts) -> list[str]:
    """A node on which it fails each time is left, at the second failure at the latest."""
    doubts = _others_unharmed(f)
    if f.strikes > 2:
        raise _Wrong(f"it failed {f.strikes} times on {f.fault_node}")
    doubts += _goes_on(f, launches=2)
    if f.fault_node in f.nodes_after:
        raise _Wrong(f"{f.fault_node} was never left")
    return doubts


def _full_disk(f: Facts) -> list[str]:
    """The cause is named; it is not started again and again onto the same full disk; no node is blamed."""
    _no_node(f)
    words = f.messages.lower()
    if not any(word in words for word in ("no space left", "full disk", "is full", "disk full")):
        raise _Wrong("no message says that the disk is full")
    if f.launches > 1:
        raise _Wrong(f"it was started {f.launches} times more onto the same full disk")
    if not f.over:
        raise _Wrong(f"it had not stopped {f.waited_s:.0f} s after the disk was full")
    return ["it was started once more onto the full disk"] if f.launches else []


def _dead_node(f: Facts) -> list[str]:
    """Training goes on without it, and no other node suffers."""
    doubts = _others_unharmed(f) + _goes_on(f)
    if f.fault_node in f.nodes_after:
        raise _Wrong(f"it went on with {f.fault_node}, which is dead")
    return doubts


_RULES: dict[str, Callable[[Facts], list[str]]] = {
    "clean": _clean,
    "stop": _stopped,
    "kill": _passing,
    "loader": _passing,
    "error": _own_error,
    "cuda": _bad_node,
    "disk": _full_disk,
    "node": _dead_node,
}


def _others_unharmed(f: Facts) -> list[str]:
    others = sorted({*f.evicted, *f.taken_out} - {f.fault_node})
    if others:
        raise _Wrong(f"the fault was on {f.fault_node}, and {', '.join(others)} suffered for it")
    named = sorted({*f.blamed} - {f.fault_node})
    if named and f.fault_node not in f.blamed:
        raise _Wrong(f"the fault was on {f.fault_node}, and {', '.join(named)} was named")
    return [f"{', '.join(named)} was named, too"] if named else []


def _no_node(f: Facts) -> None:
    nodes = sorted({*f.blamed, *f.evicted, *f.taken_out})
    if nodes:
        raise _Wrong(f"no node was at fault, and {', '.join(nodes)} suffered for it")


def _goes_on(f: Facts, launches: int = 1) -> list[str]:
    """New steps, from a checkpoint, to the end, with so many launches after the fault at most.

    Returns:
        What is not as good as it could be.
    """
    if f.first_new_step_s is None:
        what = f"the last that was done was {f.road}" if f.acted else "nothing was done"
        raise _Wrong(f"no new step within {f.waited_s:.0f} s ({f.state or 'no state'}); {what}")
    if f.fault_step >= 11 and any(0 < step <= 5 for step in f.begun_at):
        raise _Wrong(f"a restart began at step {min(f.begun_at)}, with a checkpoint there")
    _completed(f)
    doubts = []
    if f.first_new_step_s > SLOW_S:
        doubts.append(f"it took {f.first_new_step_s:.0f} s")
    if f.launches > launches:
        doubts.append(f"{f.launches} launches")
    return doubts


def _completed(f: Facts) -> None:
    if f.state != "COMPLETED":
        raise _Wrong(f"the job did not complete: {f.state} {f.exit_code}")
