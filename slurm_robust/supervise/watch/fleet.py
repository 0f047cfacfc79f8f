"""What the agents have told: nodes heard from, ranks, their progress and states. A plain book, fed with messages."""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slurm_robust.localize.slow.timings import Collector, Timing, usable
from slurm_robust.supervise.watch.suspicion import RankProgress, StepTimes

KEPT_STEPS = 100
"""Of timings: 40 MB for 16,384 ranks."""
_MAX_ARCHIVE_BYTES = 256 << 20
_KEPT_ANSWERS = 8


@dataclass
class RankInfo:
    """One rank of the present attempt; times are seconds since the epoch."""

    rank: int
    node: str
    pid: int = 0
    step_id: str = ""
    found_at_s: float = 0.0
    task: int = -1
    """Slurm's number of the task that it belongs to; several ranks of torchrun share one."""
    ranked: bool = False
    """Its environment had RANK: torchrun, or a script, stands above it."""
    gone_at_s: float = 0.0
    missed_at_s: float = 0.0
    """The supervisor's own time of `gone_at_s`; 0 while it is there."""
    task_lives: bool = False
    """Gone, with a process of its task (torchrun, a shell) still there."""
    state: str = ""
    state_pid: int = 0
    progress: RankProgress | None = None
    calls: int = 0
    loss: float | str | None = None
    grad_norm: float | str | None = None
    marks: Mapping[str, float] = field(default_factory=dict)
    layout: Mapping[str, int] = field(default_factory=dict)
    first_step: int = -1
    """The first step that it told, -1 before that."""
    first_step_at_s: float = 0.0


@dataclass(frozen=True)
class TaskEnd:
    """How a task ended: exit code, or the signal's number."""

    task: int
    node: str
    code: int
    signal: int
    at_s: float
    """By the supervisor's clock."""


class Fleet:
    """The agents' book for one attempt; a new attempt gets a new one."""

    def __init__(self, attempt: str) -> None:
        self.attempt = attempt
        self.ranks: dict[int, RankInfo] = {}
        self.heard_at_s: dict[str, float] = {}
        self.world = 0
        self.step_nodes = 0
        """Nodes of the training step, as Slurm told the ranks; 0 where it did not."""
        self.steps = StepTimes()
        self.timings = Collector(KEPT_STEPS)
        """How long steps took each rank, where ranks tell it."""
        self.archives: dict[int, dict[str, bytes]] = {}
        """capture → node → its archive, JSON; untrusted until `localize.archive` has read it. Asked for only."""
        self.ras: list[tuple[float, bytes]] = []
        """What NCCL's RAS service said, JSON, and when we heard it; untrusted until `localize.ras` has read it."""
        self.clean: dict[int, dict[str, list[int]]] = {}
        self.garbled = 0
        self.restarted: dict[int, float] = {}
        """Rank → when it was found anew under whatever stands above it in the step; untold so far."""
        self.ends: dict[tuple[str, int], TaskEnd] = {}
        """(step, task) → how it ended, by slurmstepd's word; untold where the SPANK plugin is not there."""
        self._untold: dict[str, set[int]] = {}
        self._with_workers: set[tuple[str, int]] = set()
        """(step, task) of each task whose ranks are told by RANK: torchrun's workers, for one."""
        self._of_task: dict[tuple[str, int], list[RankInfo]] = {}
        """(step, task) → its ranks."""
        self._above: dict[tuple[str, int], tuple[str, int]] = {}
        """(node, pid) of what stands above the workers of a task (torchrun) → (step, task)."""

    def feed(self, message: Mapping[str, Any], now_s: float) -> None:
        """Take one agent's message; what makes no sense is counted and passed over."""
        try:
            self._feed(message, now_s)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError):
            self.garbled += 1

    def _feed(self, message: Mapping[str, Any], now_s: float) -> None:
        kind, node = message["t"], str(message["n"])
        self.heard_at_s[node] = now_s
        if kind in ("hello", "hb", "rank", "gone"):
            self._presence(kind, node, message, now_s)
        elif kind == "p":
            for entry in message["r"]:
                self._progress(entry)
        elif kind == "t":
            for entry in message["r"]:
                self._timing(node, entry)
        elif kind == "marks":
            info = self.ranks[int(message["rank"])]
            info.marks = {str(k): float(v) for k, v in message["marks"].items()}
            info.layout = {str(k): int(v) for k, v in message["layout"].items()}
            info.first_step, info.first_step_at_s = int(message["first"][0]), float(message["first"][1])
        elif kind == "exit":
            # An agent that was started anew tells all of them again.
            key = str(message["step_id"]), int(message["task"])
            at_s = now_s - max(0.0, float(message["age_s"]))
            self.ends.setdefault(key, TaskEnd(key[1], node, int(message["code"]), int(message["sig"]), at_s))
        elif kind == "state":
            info = self.ranks[int(message["rank"])]
            info.state, info.state_pid = str(message["s"]), int(message["pid"])
        else:
            self._answer(kind, node, message, now_s)

    def _answer(self, kind: str, node: str, message: Mapping[str, Any], now_s: float) -> None:
        """What was asked for."""
        if kind == "cap":
            asked = self.archives.get(int(message["id"]))
            if asked is not None:  # else it comes when nobody waits for it any more, and tells of another moment
                asked[node] = _unpacked(message["blob"])
        elif kind == "ras":
            self.ras = [*self.ras, (now_s, _unpacked(message["blob"]))][-_KEPT_ANSWERS:]
        elif kind == "clean" and int(message["id"]) in self.clean:
            self.clean[int(message["id"])][node] = [int(p) for p in message["left"]]

    def _presence(self, kind: str, node: str, message: Mapping[str, Any], now_s: float) -> None:
        if kind == "hello":
            # A new agent says nothing of ranks that ended before it: what it does not find by its heartbeat is gone.
            self._untold[node] = {r.rank for r in self.ranks.values() if r.node == node}
        elif kind == "hb":
            for number in self._untold.pop(node, ()):
                if self.ranks[number].node == node:
                    self._gone(self.ranks[number], now_s, now_s, task_lives=False)
        elif kind == "rank":
            self._found(node, message, now_s)
        elif kind == "gone":
            number, pid = int(message["rank"]), int(message["pid"])
            above = self._above.pop((node, pid), None)
            if above is not None:
                lives = bool(message.get("task_lives", False))
                for info in self._of_task.get(above, ()):
                    info.task_lives = info.task_lives and lives
                return
            known = self.ranks.get(number)
            if known is not None and known.pid == pid:
                self._gone(known, float(message["at"]), now_s, task_lives=bool(message.get("task_lives", False)))

    def _found(self, node: str, message: Mapping[str, Any], now_s: float) -> None:
        number, pid, step_id = int(message["rank"]), int(message["pid"]), str(message["step_id"])
        task, ranked = int(message.get("task", number)), bool(message.get("ranked", False))
        known = self.ranks.get(number)
        replaces_worker = known is not None and known.ranked and known.step_id == step_id
        if ranked:
            self._with_workers.add((step_id, task))
        elif replaces_worker or (step_id, task) in self._with_workers:
            # Before and after its workers an agent finds torchrun itself, under the number of the task. With a
            # rendezvous that numbers workers as they come, the rank of that number may be another node's.
            self._above[node, pid] = step_id, task
            return
        self._untold.get(node, set()).discard(number)
        self.world = max(self.world, int(message["world"]), number + 1)
        if known is not None and known.pid == pid and known.node == node:
            known.gone_at_s = known.missed_at_s = 0.0
            return
        self.step_nodes = max(self.step_nodes, int(message.get("nodes", 0)))
        if known is not None:
            self._of_task[known.step_id, known.task].remove(known)
        self.ranks[number] = RankInfo(number, node, pid, step_id, float(message["at"]), task)
        self._of_task.setdefault((step_id, task), []).append(self.ranks[number])
        self.ranks[number].ranked = ranked
        if ranked and replaces_worker:
            self.restarted[number] = now_s

    def _gone(self, info: RankInfo, at_s: float, now_s: float, *, task_lives: bool) -> None:
        if not info.gone_at_s:
            info.gone_at_s, info.missed_at_s, info.task_lives = at_s, now_s, task_lives

    def _progress(self, entry: list[Any]) -> None:
        number, step, phase, at_s, calls, loss, grad_norm, timeout_s = entry
        info = self.ranks[int(number)]
        info.calls, info.loss, info.grad_norm = int(calls), loss, grad_norm
        info.progress = RankProgress(
            int(number), int(step), str(phase), float(at_s), None if timeout_s is None else float(timeout_s)
        )
        if info.calls > 0:
            if 0 <= info.first_step < int(step) and not self.steps.knows(int(number)):
                # We came in the middle, perhaps after it hung: its steps so far tell how long one takes.
                self.steps.saw(int(number), info.first_step, info.first_step_at_s)
            self.steps.saw(int(number), int(step), float(at_s))

    def _timing(self, node: str, entry: list[Any]) -> None:
        rank, step, *seconds = entry
        if int(rank) not in self.ranks or int(step) < 0:
            raise ValueError("no such rank, or no step")
        total_s, compute_s, communication_s = (usable(value) for value in seconds)
        self.timings.add(Timing(int(rank), int(step), total_s, compute_s, communication_s, node))

    def expect(self, capture: int) -> dict[str, bytes]:
        """Take in the archives of this capture from now on, until they are popped; they come into what is returned."""
        return self.archives.setdefault(capture, {})

    # -- questions ---------------------------------------------------------------------------------------------

    @property
    def alive(self) -> list[RankInfo]:
        """Ranks that are there."""
        return [r for r in self.ranks.values() if not r.gone_at_s]

    def missing(self, now_s: float, settle_s: float) -> list[RankInfo]:
        """Ranks that are gone for this long, with their whole task, while others are still there."""
        if not self.alive:
            return []
        gone = [r for r in self.ranks.values() if r.missed_at_s and not r.task_lives]
        return [r for r in gone if now_s - r.missed_at_s >= settle_s]

    @property
    def stopped(self) -> bool:
        """Whether the process of a rank itself is stopped (SIGSTOP, or held by a debugger), by its agent's word."""
        return any(r.state == "T" and r.state_pid == r.pid for r in self.alive)

    @property
    def complete(self) -> bool:
        """Whether every rank of the training has been found."""
        return bool(self.ranks) and len(self.ranks) >= self.world

    @property
    def step(self) -> int:
        """The step that every reporting rank has completed, -1 where none reports one."""
        return min((r.progress.step for r in self.ranks.values() if r.progress is not None), default=-1)

    @property
    def last_sign_s(self) -> float:
        """Time of the last sign of life of any rank, 0 where there was none."""
        return max((r.progress.at_s for r in self.ranks.values() if r.progress is not None), default=0.0)

    @property
    def step_ids(self) -> list[str]:
        """Ids of the steps that the ranks run in (one, but for odd scripts)."""
        return sorted({r.step_id for r in self.ranks.values() if r.step_id})

    @property
    def rank_nodes(self) -> dict[int, str]:
        """Rank → node."""
        return {r.rank: r.node for r in self.ranks.values()}

    def silent_nodes(self, nodes: tuple[str, ...], now_s: float, limit_s: float) -> list[str]:
        """Nodes whose agent was heard of once and is silent for longer than the limit."""
        return [n for n in nodes if n in self.heard_at_s and now_s - self.heard_at_s[n] > limit_s]

    def heard_within(self, now_s: float, limit_s: float) -> set[str]:
        """Nodes whose agent was heard of within the limit."""
        return {n for n, at_s in self.heard_at_s.items() if now_s - at_s <= limit_s}

    def first_step(self, beyond: int) -> tuple[int, float] | None:
        """The first step beyond this one that every reporting rank completed, and when the last of them did.

        None where they are not known: not all have told one yet, or the first that they told was an old step.
        """
        told = [(r.first_step, r.first_step_at_s) for r in self.ranks.values() if r.progress is not None]
        if not told or min(step for step, _ in told) <= beyond:
            return None
        return max(step for step, _ in told), max(at_s for _, at_s in told)

    def mark(self, name: str) -> float:
        """When the last rank passed a start-up mark, 0 where not all have."""
        stamps = [r.marks.get(name, 0.0) for r in self.ranks.values()]
        return max(stamps) if stamps and all(stamps) else 0.0


def _unpacked(blob: str) -> bytes:
    engine = zlib.decompressobj()
    try:
        raw = engine.decompress(base64.b64decode(blob, validate=True), _MAX_ARCHIVE_BYTES)
    except (binascii.Error, zlib.error) as error:
        raise ValueError(str(error)) from None
    if not engine.eof:
        raise ValueError("cut off, or too large")
    return raw
