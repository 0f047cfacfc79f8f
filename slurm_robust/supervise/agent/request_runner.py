"""Carries out requests of the supervisor, each in its own thread, so that heartbeats continue meanwhile."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any, Callable

from slurm_robust.supervise.agent import messages, packing, procfs, ras, warm_processes
from slurm_robust.supervise.agent.capture import CaptureOptions, capture
from slurm_robust.supervise.agent.clock import SystemClock
from slurm_robust.supervise.agent.gpu_holders import holders
from slurm_robust.supervise.agent.mount_messages import CheckMounts
from slurm_robust.supervise.agent.mounts import MountProbe, held
from slurm_robust.supervise.agent.rank_table import RankTable
from slurm_robust.supervise.agent.ranks import ProcessFinder, Rank, StepProcess, Target
from slurm_robust.supervise.agent.stopped_messages import ContinueRank, RankContinued
from slurm_robust.supervise.agent.tcp_traffic import TcpTraffic
from slurm_robust.supervise.agent.warm_messages import AskWarm

_OTHERS_FIRST_S = 0.4
_DEATH_POLL_S = 0.005
_CLEAN_POLL_S = 0.05
_MAX_LEFT_REPORTED = 50


class RequestRunner:
    """Runs requests over the ranks of a table."""

    def __init__(
        self, target: Target, table: RankTable, send: messages.Handler, py_spy: str, clock: SystemClock
    ) -> None:
        self._target = target
        self._table = table
        self._send = send
        self._py_spy = py_spy
        self._clock = clock
        self._traffic = TcpTraffic()
        self._mounts = MountProbe(clock)
        self._warm_finder = ProcessFinder(target, clock)
        self._warm_lock = threading.Lock()
        self._cleaned: set[int] = set()
        """Ids of the clean-ups that were begun: the supervisor repeats its requests."""

    def run(self, request: messages.ToAgent) -> None:
        """Begin to carry out a request."""
        if isinstance(request, messages.WatchAttempt):
            self._table.watch(request.attempt)
        elif isinstance(request, messages.TakeCapture):
            self._table.rescan()
            ranks = list(self._table.ranks.values())
            _in_thread(self._capture, request, ranks, self._table.progress_for_archive())
            _in_thread(self._find_dead_mounts, request, ranks)
            if request.ras_node == self._target.node and ranks:
                _in_thread(self._ask_nccl, request, ranks)
        elif isinstance(request, ContinueRank):
            if request.node == self._target.node:
                refused = _continue(self._table.ranks.get(request.rank), request.pid)
                self._send(RankContinued(*request, refused))
        elif isinstance(request, CheckMounts):
            if request.only in ("", self._target.node):
                _in_thread(self._check_mounts, request)
        elif isinstance(request, AskWarm):
            if request.only in ("", self._target.node):
                _in_thread(self._ask_warm, request, list(self._table.ranks.values()))
        elif not request.request_id or request.request_id not in self._cleaned:
            self._cleaned.add(request.request_id)
            _in_thread(self._clean, request)

    def _capture(self, request: messages.TakeCapture, ranks: list[Rank], progress: dict[int, Any]) -> None:
        options = CaptureOptions(
            self._target.node, request.round_number, self._py_spy, request.timeout_s, request.with_recorder
        )
        archive = capture(ranks, progress, options, self._clock, self._traffic)
        self._send(messages.CaptureTaken(self._target.node, request.capture_id, packing.pack(archive)))

    def _ask_nccl(self, request: messages.TakeCapture, ranks: list[Rank]) -> None:
        """Ask NCCL's RAS service for its view of the whole job; send nothing if there is no such service."""
        pids = [p.pid for r in ranks for p in r.tree]
        reply = ras.ask(pids, procfs.environ(ranks[0].main.pid), request.timeout_s, self._clock)
        if reply.json is not None or reply.text or reply.error:
            packed = packing.pack(dict(reply._asdict(), at_s=self._clock.now_s()))
            self._send(messages.RasTaken(self._target.node, request.capture_id, packed))

    def _find_dead_mounts(self, request: messages.TakeCapture, ranks: list[Rank]) -> None:
        """Send which network mounts do not answer, if a process of a rank may wait for one.

        While an earlier capture still asks, its answer is enough.
        """
        if held(ranks) and not self._mounts.busy:
            self._check_mounts(CheckMounts(request.capture_id))

    def _check_mounts(self, request: CheckMounts) -> None:
        self._send(self._mounts.answer(self._target.node, request))

    def _ask_warm(self, request: AskWarm, ranks: list[Rank]) -> None:
        with self._warm_lock:
            answer = warm_processes.answer(self._warm_finder, request, ranks, self._clock)
        self._send(answer)

    def _clean(self, request: messages.CleanUp) -> None:
        """Kill processes that outlive their step, until no process of the attempt is left or the time is over."""
        deadline_s = self._clock.monotonic_s() + request.timeout_s
        finder = ProcessFinder(self._target._replace(attempt=request.attempt), self._clock)
        while True:
            # A process whose environment no longer names its job (a server, a container) may still hold a GPU.
            left = finder.processes() or holders(self._target, set(request.step_ids))
            if not left or self._clock.monotonic_s() > deadline_s:
                break
            _kill(left, self._clock)
            self._clock.pause(_CLEAN_POLL_S)
        pids = tuple(p.pid for p in left)[:_MAX_LEFT_REPORTED]
        self._send(messages.Cleaned(self._target.node, request.request_id, pids))


def _in_thread(run: Callable[..., None], *args: Any) -> None:
    threading.Thread(target=run, args=args, daemon=True).start()


def _kill(processes: list[StepProcess], clock: SystemClock) -> None:
    """Send SIGKILL to all processes, to the tasks themselves last.

    If slurmstepd still finds processes when its task has ended, it checks again only a second later; else the step ends
    at once. The tasks are stopped meanwhile, so that they do not react to the death of their loaders.
    """
    pids = {p.pid for p in processes}
    tasks = [p.pid for p in processes if p.ppid not in pids]
    others = [p.pid for p in processes if p.ppid in pids]
    if others:
        _signal(tasks, signal.SIGSTOP)
        _signal(others, signal.SIGKILL)
        deadline_s = clock.monotonic_s() + _OTHERS_FIRST_S
        while clock.monotonic_s() < deadline_s and any(procfs.lives(pid) for pid in others):
            clock.pause(_DEATH_POLL_S)
    _signal(tasks, signal.SIGKILL)


def _continue(rank: Rank | None, pid: int) -> str:
    """Continue a rank's main process that a signal has stopped; return why not, or an empty text if it was done."""
    stat = procfs.stat(pid)
    if rank is None or stat is None or (rank.main.pid, rank.main.start_ticks) != (pid, stat.start_ticks):
        return f"process {pid} is no longer the rank's"
    if stat.state != "T" or procfs.tracer(pid):
        return f"process {pid} is held by a debugger" if procfs.tracer(pid) else f"process {pid} is no longer stopped"
    try:
        os.kill(pid, signal.SIGCONT)
    except OSError as error:
        return f"process {pid} cannot be signalled: {error.strerror}"
    return ""


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:
            continue
