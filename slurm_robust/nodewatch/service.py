"""Runs the loop: waits for all sources at once, judges what they say, and writes the findings and its own state.

The cursor is stored only after the ring has the findings: a service that is killed in between reads some records again,
and the ring recognises them.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slurm_robust.marks import node_findings
from slurm_robust.marks.node_findings import NodeFinding
from slurm_robust.nodecheck import state_folder
from slurm_robust.nodecheck.engine import check_state, registry
from slurm_robust.nodecheck.engine.choices import Choices
from slurm_robust.nodecheck.engine.context import Context
from slurm_robust.nodecheck.nvml import library
from slurm_robust.nodewatch import link_listener, nvml_watch, polls
from slurm_robust.nodewatch.child import ChildSource
from slurm_robust.nodewatch.gpu_numbers import GpuNumbers
from slurm_robust.nodewatch.kernel_lines import KernelLines
from slurm_robust.nodewatch.kmsg_follower import KmsgFollower
from slurm_robust.nodewatch.moment import Moment
from slurm_robust.nodewatch.ring import FindingRing, Say, Seen
from slurm_robust.nodewatch.settings_file import SettingsFile
from slurm_robust.nodewatch.slurm_reporter import NAME as REPORTER
from slurm_robust.nodewatch.slurm_reporter import SlurmReporter
from slurm_robust.nodewatch.source import Source, SourceBrokenError
from slurm_robust.nodewatch.verdicts import Verdicts

FOLDER = "nodewatch"
"""The service's own state, below `nodecheck.cache_dir`."""
_STATE = "service"
_LOCK = "lock"
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 300.0
_HEALTHY_S = 60.0
"""A source that lived so long begins with the shortest pause when it breaks."""
_INSPECT_S = 30.0
HELD_BACK = (signal.SIGHUP,)
"""Signals that a caller may block until the service runs: one that is sent meanwhile is not lost, and ends nothing."""
_RDMA_SILENT_S = 60.0
_LINK_SILENT_S = 120.0

Show = Callable[[NodeFinding], None]
MakeReporter = Callable[[str, "dict[str, Any]"], SlurmReporter]
"""Makes the reporter to Slurm, from the child that hung and the faults that were not told before the last end."""


class RunningError(Exception):
    """Another service uses this state folder, or the folder cannot be used; the message says which."""


@dataclass
class _Watched:
    """A source, and when it is started again."""

    source: Source
    wanted: Callable[[], bool] = lambda: True
    running: bool = False
    started_s: float = 0.0
    again_s: float = -math.inf
    pause_s: float = _FIRST_PAUSE_S
    problem: str = ""
    fd: int = -1


class Service:
    """Watches one node.

    Args:
        chosen: The site's choices.
        context: The context of the checks.
        say: Writes a line for people.
        show: Called with each finding that has a number.
        reporter: Makes what tells Slurm of an unfit node; None if nothing may be told.
        settings_file: Looks whether robust.yaml has changed; None: only a SIGHUP has it read again.
    """

    def __init__(
        self,
        chosen: Choices,
        context: Context,
        say: Say,
        show: Show,
        reporter: MakeReporter | None = None,
        *,
        settings_file: SettingsFile | None = None,
    ) -> None:
        assert context.cache_dir is not None
        self._say, self._show = say, show
        self._boot = node_findings.boot_id()
        self._own = context.cache_dir / FOLDER
        self._kept = self._load()
        self._selector = selectors.DefaultSelector()
        self._inspect_s = 0.0
        self._stop = self._reread = False
        self._unsaved = False
        self.ring = FindingRing(context.cache_dir, self._boot, say)
        self._gpus = GpuNumbers(context.root, self._part("gpus"))
        names = [*polls.NODE_CHECKS, *polls.RDMA_CHECKS, *nvml_watch.CHECKS]
        checks = polls.available(names, chosen.disable)
        settings = {check.name: check.settings(chosen.options.get(check.name, {})) for check in checks}
        self._lines = KernelLines(context, chosen.options, self._gpus, chosen.disable)
        self._verdicts = Verdicts(
            self._boot, settings, self._gpus, self._part("verdicts"), first="verdicts" not in self._kept
        )
        self._kmsg = KmsgFollower(context.kmsg, self._lines, self._part("cursor"))
        self._watched = [_Watched(self._kmsg), *self._others(chosen, context, checks)]
        hung = self._part("hung").get(REPORTER, "")
        self._reporter = reporter(hung, self._part(REPORTER)) if reporter is not None else None
        self._watched += [_Watched(self._reporter)] if self._reporter is not None else []
        self._settings = settings_file
        if settings_file is not None:
            settings_file.hung = self._part("hung").get(settings_file.name, "")
            self._watched.append(_Watched(settings_file))
        mode, since = "act" if chosen.act else "observe", self._part("mode")
        self._mode: dict[str, Any] = since if since.get("mode") == mode else {"mode": mode, "since_s": time.time()}

    def _others(self, chosen: Choices, context: Context, checks: Sequence[Any]) -> list[_Watched]:
        """Return the sources beside the kernel log; their checks have a state of their own, apart from the prolog's."""
        own = _own_context(context, self._own)
        named = {check.name: check for check in checks}

        def these(names: Sequence[str]) -> list[Any]:
            return [named[name] for name in names if name in named]

        listening = link_listener.body(own, chosen.options.get("ethernet", {}).get("interfaces", ()))
        link = self._child("link", listening, polls.NODE_EVERY_S, _LINK_SILENT_S)
        node = polls.node_body(these(polls.NODE_CHECKS), own, chosen.options, chosen.deadline_s, chosen.disable)
        poll = self._child("poll", node, polls.NODE_EVERY_S, 120.0)
        ports = polls.rdma_body(these(polls.RDMA_CHECKS), own, chosen.options)
        rdma = self._child("rdma", ports, polls.NODE_EVERY_S, _RDMA_SILENT_S)
        asked = nvml_watch.body(these(nvml_watch.CHECKS), own, chosen.options)
        hung_s = registry.get("gpu_driver").settings(chosen.options.get("gpu_driver", {}))["hung_s"]
        nvml = self._child("nvml", asked, nvml_watch.EVERY_S, nvml_watch.SILENT_S + hung_s)
        return [
            _Watched(link),
            _Watched(poll),
            _Watched(rdma, lambda: polls.has_rdma(own)),
            _Watched(nvml, lambda: _nvml_wanted(own, self._say)),
        ]

    def _child(self, name: str, body: Callable[..., None], every_s: float, silent_s: float) -> ChildSource:
        hung = self._part("hung").get(name, "")
        take = {"rdma": self._of_rdma, "nvml": self._of_nvml, "link": link_listener.findings}.get(name, self._of_node)
        return ChildSource(name, body, take, every_s=every_s, silent_s=silent_s, hung=hung)

    def _of_node(self, message: Any, moment: Moment) -> list[Seen]:
        for line in message["log"]:
            self._say(line)
        return self._verdicts.changes("poll", message["results"], moment)

    def _of_rdma(self, message: Any, moment: Moment) -> list[Seen]:
        return polls.rdma_findings(self._verdicts, message, moment)

    def _of_nvml(self, message: Any, moment: Moment) -> list[Seen]:
        return nvml_watch.findings(self._verdicts, self._lines, self._gpus, message, moment)

    def _load(self) -> dict[str, Any]:
        kept = check_state.load(self._own, _STATE)
        if kept.get("boot") == self._boot:
            return kept
        # A plain file goes on over a boot; the kernel's own numbers begin anew.
        cursor = kept.get("cursor")
        return {"cursor": {k: v for k, v in cursor.items() if k != "seq"}} if isinstance(cursor, dict) else {}

    def _part(self, name: str) -> dict[str, Any]:
        part = self._kept.get(name)
        return part if isinstance(part, dict) else {}

    def _save(self) -> None:
        hung = {w.source.name: w.source.hung for w in self._watched if isinstance(w.source, ChildSource)}
        state = {
            "boot": self._boot,
            "seq": self.ring.last_seq,
            "cursor": self._kmsg.cursor,
            "verdicts": self._verdicts.kept,
            "gpus": self._gpus.kept,
            "hung": {name: child for name, child in hung.items() if child},
            REPORTER: self._reporter.kept if self._reporter is not None else {},
            "mode": self._mode,
        }
        if state != self._kept and check_state.save(self._own, _STATE, state):
            self._kept = state
        self._unsaved = False

    def run(self, reread: Callable[[], bool] = lambda: False) -> bool:
        """Watch until SIGTERM or SIGINT, or until there are new settings.

        Args:
            reread: Reads robust.yaml; returns True if a service with other settings is to take this one's place.

        Returns:
            Whether it ended for new settings.

        Raises:
            RunningError: another service watches this node.
        """
        renewed = False
        with self._lock(), self._signals() as woken:
            seq = self._kept.get("seq")
            self.ring.load(seq if isinstance(seq, int) and not isinstance(seq, bool) else 0)
            self._selector.register(woken, selectors.EVENT_READ)
            self._say(f"mode {self._mode['mode']}, since {_utc(self._mode['since_s'])}")
            while not self._stop and not renewed:
                moment = Moment.now()
                self._turn(moment)
                wait_s = self._next_s() - Moment.now().monotonic_s
                for key, _ in self._selector.select(max(0.0, wait_s)):
                    if key.data is None:
                        os.read(woken, 4096)
                    else:
                        self._take(key.data, key.data.source.read, Moment.now())
                if self._reread or (self._settings is not None and self._settings.changed):
                    self._reread = False
                    if self._settings is not None:
                        self._settings.changed = False
                    renewed = reread()
            for watched in self._watched:
                self._end(watched)
            self.ring.flush(math.inf)
            self._save()
            self._selector.close()
        return renewed and not self._stop

    def _turn(self, moment: Moment) -> None:
        """Start the sources that are to be started, do the steps that are due, write what is new."""
        for watched in self._watched:
            if not watched.running and moment.monotonic_s >= watched.again_s:
                self._start(watched, moment)
            elif watched.running and moment.monotonic_s >= watched.source.due_s:
                self._take(watched, watched.source.tick, moment)
        if moment.monotonic_s >= self._inspect_s:
            self._inspect_s = moment.monotonic_s + _INSPECT_S
            self.ring.inspect()
            self._save_if_written(moment)
        self._save_if_written(moment, only_new=True)

    def _save_if_written(self, moment: Moment, *, only_new: bool = False) -> None:
        if self.ring.flush(moment.monotonic_s) and (self._unsaved or not only_new):
            self._save()

    def _next_s(self) -> float:
        times = [w.source.due_s if w.running else w.again_s for w in self._watched]
        return min([self._inspect_s, self.ring.due_s(), *times])

    def _start(self, watched: _Watched, moment: Moment) -> None:
        if not watched.wanted():
            watched.again_s = moment.monotonic_s + polls.NODE_EVERY_S
            return
        watched.running, watched.started_s = True, moment.monotonic_s

        def begin(moment: Moment) -> list[Seen]:
            watched.source.open(moment)
            return []

        self._take(watched, begin, moment)

    def _take(self, watched: _Watched, step: Callable[[Moment], list[Seen]], moment: Moment) -> None:
        """Let a source do one step; an error in the step stops this source alone."""
        if not watched.running:
            return
        try:
            found = step(moment)
        except Exception as error:  # noqa: BLE001 (a source's own fault is no fault of the node, nor of other sources)
            self._broken(watched, error, moment)
            return
        if watched.fd != watched.source.fd:
            self._forget_fd(watched)
            if watched.source.fd >= 0:
                self._selector.register(watched.source.fd, selectors.EVENT_READ, watched)
            watched.fd = watched.source.fd
        if moment.monotonic_s - watched.started_s >= _HEALTHY_S:
            watched.problem, watched.pause_s = "", _FIRST_PAUSE_S
        for seen in found:
            self._unsaved = True
            if self._reporter is not None:
                self._reporter.offer(seen, moment)
            numbered = self.ring.add(seen)
            if numbered is not None:
                self._show(numbered)

    def _broken(self, watched: _Watched, error: Exception, moment: Moment) -> None:
        self._end(watched)
        watched.again_s = moment.monotonic_s + watched.pause_s
        watched.pause_s = min(watched.pause_s * 2, _LONGEST_PAUSE_S)
        known = isinstance(error, (OSError, SourceBrokenError))
        problem = str(error) if known else f"{type(error).__name__}: {error}"
        if problem != watched.problem:
            self._say(f"{watched.source.name}: {problem}; it is tried again")
        watched.problem = problem
        self._unsaved = True

    def _forget_fd(self, watched: _Watched) -> None:
        if watched.fd >= 0:
            with contextlib.suppress(KeyError, ValueError, OSError):
                self._selector.unregister(watched.fd)
        watched.fd = -1

    def _end(self, watched: _Watched) -> None:
        self._forget_fd(watched)
        watched.source.close()
        watched.running = False

    @contextlib.contextmanager
    def _lock(self) -> Any:
        """Allow one service for each state folder; a folder that cannot be used is reported, and the watch goes on."""
        try:
            self._own.mkdir(mode=0o755, parents=True, exist_ok=True)
            inside = state_folder.open_own(str(self._own))
            try:
                flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                held = os.open(_LOCK, flags, 0o600, dir_fd=inside)
            finally:
                os.close(inside)
        except (OSError, state_folder.UntrustedState) as error:
            self._say(f"{self._own}: {error}: after a restart some findings may be told again")
            yield
            return
        try:
            # This kind of lock is not inherited: a child that hangs does not hold it.
            fcntl.lockf(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(held)
            message = f"another nodewatch runs with {self._own}; see: systemctl status srobust-nodewatch"
            raise RunningError(message) from None
        try:
            yield
        finally:
            os.close(held)

    @contextlib.contextmanager
    def _signals(self) -> Any:
        """Provide a descriptor that becomes readable after a signal to end, or to read the settings again."""
        reader, writer = os.pipe()
        for fd in (reader, writer):
            os.set_blocking(fd, False)

        def stop(*_: Any) -> None:
            self._stop = True

        def again(*_: Any) -> None:
            self._reread = True

        handlers = {signal.SIGTERM: stop, signal.SIGINT: stop, signal.SIGHUP: again}
        if os.isatty(0):
            del handlers[signal.SIGHUP]  # a person's terminal, which is closed
        old = signal.set_wakeup_fd(writer)
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        # One that came before there was a handler, or while another service was being made.
        blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_BACK)
        try:
            yield reader
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            signal.set_wakeup_fd(old)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(reader)
            os.close(writer)


def _own_context(context: Context, folder: Path) -> Context:
    return replace(context, cache_dir=folder, stage="periodic", shared={})


def _utc(at_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at_s))


def _nvml_wanted(context: Context, say: Say) -> bool:
    """Return whether to ask NVML. Its binding is loaded here, for every child; a missing binding is reported."""
    if not polls.driver_there(context):
        return False
    try:
        library.binding()
    except ImportError:
        say(f"the GPUs are not watched through NVML: type {sys.executable} -m pip install nvidia-ml-py")
    return True


def say_on_stderr(line: str) -> None:
    """Write one line for journald."""
    print(f"srobust nodewatch: {line}", file=sys.stderr, flush=True)
