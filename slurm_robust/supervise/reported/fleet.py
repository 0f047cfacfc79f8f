"""Keeps the reports of the agents: nodes heard from, ranks, their progress and states."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from slurm_robust.localize.dead_mounts import MountView
from slurm_robust.localize.timings import Collector, Timing, usable
from slurm_robust.supervise.agent import messages, packing
from slurm_robust.supervise.agent.mount_messages import MountsChecked
from slurm_robust.supervise.agent.stopped_messages import RankContinued
from slurm_robust.supervise.agent.warm_messages import WarmAnswer
from slurm_robust.supervise.reported.suspicion import RankProgress, StepTimes
from slurm_robust.supervise.reported.traffic import Traffic

KEPT_STEPS = 100
"""Of timings: 40 MB for 16,384 ranks."""
_KEPT_ANSWERS = 8
_KEPT_MOUNT_ANSWERS = 64
"""A node with a dead mount answers each capture of an incident; other nodes answer once."""
_MAX_RANKS = 1 << 20
"""Lists of all ranks are made; a garbled number must not fill the memory."""


@dataclass
class RankInfo:
    """One rank of the attempt; times are seconds since the epoch, on the supervisor's clock."""

    rank: int
    node: str
    pid: int = 0
    step_id: str = ""
    task: int = -1
    """Slurm's number of its task; several ranks of torchrun share one task."""
    ranked: bool = False
    """Its environment has RANK: torchrun or a script has started it."""
    python: str = ""
    """The Python that runs it; empty if it is not known."""
    gone_at_s: float = 0.0
    missed_at_s: float = 0.0
    """The supervisor's own time of `gone_at_s`; 0 while the rank lives."""
    last_seen_s: float = 0.0
    """When its agent was heard last, if that agent has gone with the rank, or before it; else 0."""
    task_lives: bool = False
    """The rank is gone, but a process of its task (torchrun, a shell) still lives."""
    state: str = ""
    state_pid: int = 0
    progress: RankProgress | None = None
    calls: int = 0
    loss: float | str | None = None
    grad_norm: float | str | None = None
    loss_call: int = 0
    """The call that gave the loss, counted like `calls`."""
    had_finite_loss: bool = False
    marks: Mapping[str, float] = field(default_factory=dict)
    layout: Mapping[str, int] = field(default_factory=dict)
    first_step: int = -1
    """The first step that the rank reported, -1 before its first report."""
    first_step_at_s: float = 0.0


@dataclass(frozen=True)
class TaskEnd:
    """The end of a task: its exit code, or the number of the signal."""

    task: int
    node: str
    code: int
    signal: int
    at_s: float
    """On the supervisor's clock."""


class Fleet:
    """All ranks and agents of one attempt; a new attempt gets a new one."""

    def __init__(self, attempt: str) -> None:
        self.attempt = attempt
        self.ranks: dict[int, RankInfo] = {}
        self.heard_at_s: dict[str, float] = {}
        self.world = 0
        self.step_nodes = 0
        """Nodes of the training step, from the ranks' environment; 0 if unknown."""
        self.steps = StepTimes()
        self.timings = Collector(KEPT_STEPS)
        """How long steps took each rank, if ranks report it."""
        self.archives: dict[int, dict[str, bytes]] = {}
        """Expected capture → node → its archive, JSON; untrusted until `localize.archive` has read it."""
        self.ras: list[tuple[float, bytes]] = []
        """Answers of NCCL's RAS service, JSON, and when they arrived; untrusted until `localize.ras` has read them."""
        self.clean: dict[int, dict[str, list[int]]] = {}
        """Clean-up request → node → pids that are left."""
        self.warm: dict[int, dict[str, WarmAnswer]] = {}
        """Question about warm processes → node → its answer."""
        self.continued: list[RankContinued] = []
        """Answers about stopped ranks that were to be continued, until they are taken."""
        self.mounts: dict[int, dict[str, MountsChecked]] = {}
        """Capture or question → node → which of its network file systems answer; only the last ones."""
        self.garbled = 0
        """Messages that made no sense."""
        self.restarted: dict[int, float] = {}
        """Rank → when its parent (torchrun) replaced its worker; until it is reported."""
        self.ends: dict[tuple[str, int], TaskEnd] = {}
        """(step, task) → its end, from slurmstepd; empty without the SPANK plugin."""
        self._unconfirmed: dict[str, set[int]] = {}
        """Node → ranks that its new agent has not found yet."""
        self._left_s: dict[str, float] = {}
        """Node → when the agent before its present agent was heard last."""
        self._with_workers: set[tuple[str, int]] = set()
        """(step, task) of each task whose ranks have RANK, such as torchrun's workers."""
        self._of_task: dict[tuple[str, int], list[RankInfo]] = {}
        """(step, task) → its ranks."""
        self._above: dict[tuple[str, int], tuple[str, int]] = {}
        """(node, pid) of the parent of the workers of a task (torchrun) → (step, task)."""
        self._stop: tuple[float, float] = (0.0, 0.0)
        """When this process went on after it had been stopped, and for how long it was stopped."""
        self._unwatched: set[tuple[str, int]] = set()
        """(node, pid) of each process whose rank number belongs to a rank of another task: it is a run of its own."""
        self.traffic = Traffic()
        """The RDMA traffic of the nodes."""
        self._takers: dict[type, Callable[[Any, float], None]] = {
            messages.Hello: self._take_hello,
            messages.Heartbeat: self._take_heartbeat,
            messages.RankFound: self._take_found,
            messages.RankGone: self._take_gone,
            messages.ProgressReport: self._take_progress,
            messages.TimingReport: self._take_timings,
            messages.RankStart: self._take_start,
            messages.RankState: self._take_state,
            messages.TaskEnded: self._take_exit,
            messages.CaptureTaken: self._take_capture,
            messages.RasTaken: self._take_ras,
            messages.Cleaned: self._take_cleaned,
            messages.PortTraffic: self.traffic.take,
            WarmAnswer: self._take_warm,
            RankContinued: self._take_continued,
            MountsChecked: self._take_mounts,
        }

    def feed(self, message: messages.FromAgent, now_s: float) -> None:
        """Take one agent's message; a message without a meaning is counted and skipped."""
        if message.node:
            if isinstance(message, messages.Hello):
                self._left_s[message.node] = self.heard_at_s.get(message.node, now_s)
            self.heard_at_s[message.node] = now_s
        self.garbled += isinstance(message, messages.Malformed)
        try:
            take = self._takers.get(type(message))
            if take is not None:
                take(message, now_s)
        except (KeyError, ValueError):
            self.garbled += 1

    def _take_hello(self, message: messages.Hello, now_s: float) -> None:
        # A new agent does not report ranks that ended before it started: ranks that it has not found by its first
        # heartbeat have ended.
        self._unconfirmed[message.node] = {r.rank for r in self.ranks.values() if r.node == message.node}

    def _take_heartbeat(self, message: messages.Heartbeat, now_s: float) -> None:
        for number in self._unconfirmed.pop(message.node, ()):
            info = self.ranks[number]
            if info.node == message.node and not info.gone_at_s:
                info.last_seen_s = self._left_s[message.node]
                self._mark_gone(info, now_s, now_s, task_lives=False)

    def _take_gone(self, gone: messages.RankGone, now_s: float) -> None:
        self._unwatched.discard((gone.node, gone.pid))
        above = self._above.pop((gone.node, gone.pid), None)
        if above is not None:
            for info in self._of_task.get(above, ()):
                info.task_lives = info.task_lives and gone.task_lives
            return
        known = self.ranks.get(gone.rank)
        if known is not None and known.pid == gone.pid:
            self._mark_gone(known, gone.at_s, now_s, task_lives=gone.task_lives)

    def _take_found(self, found: messages.RankFound, now_s: float) -> None:
        number, task = found.rank, found.task if found.task >= 0 else found.rank
        if max(number, found.world) >= _MAX_RANKS:
            raise ValueError("no job has so many ranks")
        known = self.ranks.get(number)
        replaces_worker = known is not None and known.ranked and known.step_id == found.step_id
        if found.ranked:
            self._with_workers.add((found.step_id, task))
        elif replaces_worker or (found.step_id, task) in self._with_workers:
            # Before and after its workers an agent finds torchrun itself, under the number of the task. Where a
            # rendezvous numbers workers as they arrive, the rank of that number may be on another node.
            self._above[found.node, found.pid] = found.step_id, task
            return
        elsewhere = known is not None and known.node != found.node and known.task != task and not known.gone_at_s
        if elsewhere and known is not None and known.step_id == found.step_id:
            self._unwatched.add((found.node, found.pid))
            return
        self._unconfirmed.get(found.node, set()).discard(number)
        self.world = max(self.world, found.world, number + 1)
        if known is not None and known.pid == found.pid and known.node == found.node:
            known.gone_at_s = known.missed_at_s = known.last_seen_s = 0.0
            return
        self.step_nodes = max(self.step_nodes, found.nodes)
        if known is not None:
            self._of_task[known.step_id, known.task].remove(known)
        info = RankInfo(number, found.node, found.pid, found.step_id, task, ranked=found.ranked, python=found.python)
        self.ranks[number] = info
        self._of_task.setdefault((found.step_id, task), []).append(info)
        if found.ranked and replaces_worker and known is not None and (known.task == task or known.gone_at_s):
            self.restarted[number] = now_s

    def _mark_gone(self, info: RankInfo, at_s: float, now_s: float, *, task_lives: bool) -> None:
        if not info.gone_at_s:
            info.gone_at_s, info.missed_at_s, info.task_lives = at_s, now_s, task_lives

    def _take_progress(self, report: messages.ProgressReport, now_s: float) -> None:
        for entry in report.progress:
            number, step, at_s = entry.rank, entry.step, self._without_stop(now_s - max(0.0, entry.age_s))
            info = self.ranks[number]
            info.calls, info.loss, info.grad_norm = entry.calls, entry.loss, entry.grad_norm
            info.loss_call = entry.loss_call or entry.calls
            # NaN and infinity arrive as text.
            info.had_finite_loss |= isinstance(entry.loss, (int, float)) and math.isfinite(entry.loss)
            info.progress = RankProgress(number, step, entry.phase, at_s, entry.phase_timeout_s)
            if info.calls > 0:
                if 0 <= info.first_step < step and not self.steps.knows(number):
                    # We attached late, perhaps after a hang: the rank's steps until now show how long a step takes.
                    self.steps.saw(number, info.first_step, info.first_step_at_s)
                self.steps.saw(number, step, at_s)

    def leave_out_stop(self, stopped_s: float, now_s: float) -> None:
        """Treat the time until now for which we were stopped, with the job, as if it had not passed."""
        self._stop = now_s, stopped_s
        for node, at_s in self.heard_at_s.items():
            self.heard_at_s[node] = self._without_stop(at_s)
        for info in self.ranks.values():
            if info.progress is not None:
                info.progress = replace(info.progress, at_s=self._without_stop(info.progress.at_s))
            info.first_step_at_s = self._without_stop(info.first_step_at_s) if info.first_step_at_s else 0.0
        self.steps.leave_out_pause(now_s)

    def _without_stop(self, at_s: float) -> float:
        """Return a time, moved later by the last stop if it was before the stop's end: agents count through a stop."""
        ended_s, stopped_s = self._stop
        return min(at_s + stopped_s, ended_s) if at_s < ended_s else at_s

    def _take_timings(self, report: messages.TimingReport, now_s: float) -> None:
        for entry in report.timings:
            if entry.rank not in self.ranks or entry.step < 0:
                raise ValueError("no such rank, or no step")
            total_s, compute_s, communication_s = (usable(value) for value in entry[2:])
            self.timings.add(Timing(entry.rank, entry.step, total_s, compute_s, communication_s, report.node))

    def _take_start(self, start: messages.RankStart, now_s: float) -> None:
        info = self.ranks[start.rank]
        info.marks = {name: now_s - max(0.0, age_s) for name, age_s in start.marks.items()}
        info.layout, info.first_step = start.layout, start.first.step
        info.first_step_at_s = now_s - max(0.0, start.first.age_s) if info.first_step >= 0 else 0.0

    def _take_state(self, message: messages.RankState, now_s: float) -> None:
        info = self.ranks[message.rank]
        info.state, info.state_pid = message.state, message.pid

    def _take_exit(self, ended: messages.TaskEnded, now_s: float) -> None:
        at_s = now_s - max(0.0, ended.age_s)
        end = TaskEnd(ended.task, ended.node, ended.code, ended.signal, at_s)
        self.ends.setdefault((ended.step_id, ended.task), end)  # an agent that was started anew reports all of them

    def _take_capture(self, capture: messages.CaptureTaken, now_s: float) -> None:
        archives = self.archives.get(capture.capture_id)
        if archives is not None:  # a late one shows another moment
            archives[capture.node] = packing.unpack(capture.packed)

    def _take_ras(self, answer: messages.RasTaken, now_s: float) -> None:
        self.ras = [*self.ras, (now_s, packing.unpack(answer.packed))][-_KEPT_ANSWERS:]

    def _take_cleaned(self, message: messages.Cleaned, now_s: float) -> None:
        if message.request_id in self.clean:
            self.clean[message.request_id][message.node] = list(message.left)

    def _take_warm(self, message: WarmAnswer, now_s: float) -> None:
        if message.request_id in self.warm:
            self.warm[message.request_id][message.node] = message

    def _take_continued(self, answer: RankContinued, now_s: float) -> None:
        self.continued = [*self.continued, answer][-_KEPT_ANSWERS:]

    def _take_mounts(self, message: MountsChecked, now_s: float) -> None:
        self.mounts.setdefault(message.request_id, {})[message.node] = message
        for old in sorted(self.mounts)[:-_KEPT_MOUNT_ANSWERS]:
            del self.mounts[old]

    def mount_views(self, since: int) -> tuple[MountView, ...]:
        """Return the state of each node's network mounts, by its latest answer about each, from this request on."""
        said: dict[str, dict[str, bool]] = {}
        for number in sorted(number for number in self.mounts if number >= since):
            for node, answer in self.mounts[number].items():
                said.setdefault(node, {}).update(dict.fromkeys(answer.silent, False))
                said[node].update(dict.fromkeys(answer.answered, True))
        return tuple(
            MountView(node, tuple(m for m, ok in of.items() if not ok), tuple(m for m, ok in of.items() if ok))
            for node, of in said.items()
        )

    def expect(self, capture: int) -> dict[str, bytes]:
        """Accept archives of this capture until it is popped from `archives`; return the table that gets them."""
        return self.archives.setdefault(capture, {})

    # -- questions ---------------------------------------------------------------------------------------------

    @property
    def alive(self) -> list[RankInfo]:
        """Return the ranks that have not ended."""
        return [r for r in self.ranks.values() if not r.gone_at_s]

    @property
    def runs(self) -> bool:
        """Whether anything of the attempt lives, watched or not."""
        return bool(self.alive or self._unwatched)

    def missing(self, now_s: float, settle_s: float) -> list[RankInfo]:
        """Return ranks that have been gone for this long, with their whole task, while others live."""
        if not self.alive:
            return []
        gone = [r for r in self.ranks.values() if r.missed_at_s and not r.task_lives]
        return [r for r in gone if now_s - r.missed_at_s >= settle_s]

    @property
    def over_rdma(self) -> bool:
        """Whether the training moves much over RDMA, and may do so between nodes."""
        return self.traffic.trains and len({rank.node for rank in self.ranks.values()}) > 1

    @property
    def stopped(self) -> list[RankInfo]:
        """Ranks whose main process is stopped by a signal (state T) or held by a debugger (state t)."""
        return [r for r in self.alive if r.state in ("T", "t") and r.state_pid == r.pid]

    @property
    def complete(self) -> bool:
        """Whether every rank of the training has been found."""
        return bool(self.ranks) and len(self.ranks) >= self.world

    @property
    def step(self) -> int:
        """Return the step that every reporting rank has completed; -1 if no rank reports steps."""
        return min((r.progress.step for r in self.ranks.values() if r.progress is not None), default=-1)

    @property
    def last_sign_s(self) -> float:
        """Time of the last sign of life of any rank, 0 if there was none."""
        return max((r.progress.at_s for r in self.ranks.values() if r.progress is not None), default=0.0)

    @property
    def python(self) -> str:
        """The Python that runs most ranks; empty if none is known."""
        pythons = Counter(r.python for r in self.ranks.values() if r.python)
        return pythons.most_common(1)[0][0] if pythons else ""

    @property
    def step_ids(self) -> list[str]:
        """Ids of the steps that the ranks run in; more than one only with unusual scripts."""
        return sorted({r.step_id for r in self.ranks.values() if r.step_id})

    @property
    def rank_nodes(self) -> dict[int, str]:
        """Rank → node."""
        return {r.rank: r.node for r in self.ranks.values()}

    def silent_nodes(self, nodes: tuple[str, ...], now_s: float, limit_s: float) -> list[str]:
        """Return nodes whose agent has sent messages, but has been silent for longer than the limit."""
        return [n for n in nodes if n in self.heard_at_s and now_s - self.heard_at_s[n] > limit_s]

    def heard_within(self, now_s: float, limit_s: float) -> set[str]:
        """Return nodes whose agent has sent a message within the limit."""
        return {n for n, at_s in self.heard_at_s.items() if now_s - at_s <= limit_s}

    def first_step(self, beyond: int) -> tuple[int, float] | None:
        """Return the first step beyond this one that every reporting rank completed, and when the last rank did.

        None if unknown: not all ranks have reported a step yet, or a rank's first reported step is an old one.
        """
        firsts = [(r.first_step, r.first_step_at_s) for r in self.ranks.values() if r.progress is not None]
        if not firsts or min(step for step, _ in firsts) <= beyond:
            return None
        return max(step for step, _ in firsts), max(at_s for _, at_s in firsts)

    def mark(self, name: str) -> float:
        """Return when the last rank passed a start-up mark, 0 if not all have passed it."""
        stamps = [r.marks.get(name, 0.0) for r in self.ranks.values()]
        return max(stamps) if stamps and all(stamps) else 0.0
