"""Keeps the ranks of this node: finds them, and reports changes."""

from __future__ import annotations

import math
import os
from typing import Any, NamedTuple

from slurm_robust import progress
from slurm_robust.supervise.agent import messages, procfs, recorder
from slurm_robust.supervise.agent.clock import SystemClock
from slurm_robust.supervise.agent.exits import Exits
from slurm_robust.supervise.agent.rank_python import python_of
from slurm_robust.supervise.agent.ranks import ProcessFinder, Rank, StepProcess, Target, group, identity, left_behind
from slurm_robust.supervise.agent.timings import TimingsQueue

_ENTRIES_PER_MESSAGE = 8
_WELL = ("", 0)


class RankTable:
    """The ranks of the attempt that is watched."""

    def __init__(self, target: Target, send: messages.Handler, clock: SystemClock) -> None:
        self.ranks: dict[int, Rank] = {}
        self._node = target.node
        self._finder = ProcessFinder(target, clock)
        self._send = send
        self._clock = clock
        self._pages: dict[int, int] = {}
        """Rank → descriptor of its progress page."""
        self._signs: dict[int, LastSign] = {}
        self._polled_s = 0.0
        """When the last poll began, in which every page was read."""
        self._start_sizes: dict[int, tuple[int, int, int]] = {}
        """Rank → how much of its start was already reported."""
        self._states: dict[int, tuple[str, int]] = {}
        """Rank → the state that was reported last, and the process that had it."""
        self._states_seen_once: dict[int, tuple[str, int]] = {}
        self._orphans: set[tuple[int, int]] = set()
        """Identities of the processes that dead ranks left."""
        self._exits = Exits(target.node, clock)
        self._timings = TimingsQueue(clock.monotonic_s())

    def watch(self, attempt: str) -> None:
        """Turn to another attempt."""
        self._finder.watch(attempt)
        for number in list(self.ranks):
            self._forget(number)
        self.ranks.clear()
        self._states.clear()
        self._orphans.clear()
        self._exits.forget()

    def rescan(self) -> None:
        """Find the ranks again; report new ranks and ranks that ended."""
        processes = self._finder.processes()
        for process in processes:
            if process.exits:
                self._exits.follow(process.exits, process.step_id)
        found = self._ranks_among(processes)
        left = left_behind(self.ranks, found)
        if left:
            self._orphans |= left
            found = self._ranks_among(processes)
        for number, rank in found.items():
            known = self.ranks.get(number)
            if known is None or known.main.pid != rank.main.pid:
                self._forget(number)
                self._report_found(rank)
        tasks = {p.procid for p in processes if identity(p) not in self._orphans}
        for number in [n for n in self.ranks if n not in found]:
            main = self.ranks[number].main
            # If torchrun or a shell still runs above the rank, it decides what the rank's end means.
            task_lives = main.procid in tasks
            self._send(messages.RankGone(self._node, number, main.pid, self._clock.now_s(), task_lives=task_lives))
            recorder.remove_pipe(main, number)
            self._forget(number)
            self._states.pop(number, None)
        self.ranks = found

    def _ranks_among(self, processes: list[StepProcess]) -> dict[int, Rank]:
        return {r.rank: r for r in group([p for p in processes if identity(p) not in self._orphans])}

    def _report_found(self, rank: Rank) -> None:
        main = rank.main
        self._send(
            messages.RankFound(
                self._node,
                rank.rank,
                main.pid,
                rank.step_id,
                rank.world,
                self._clock.now_s(),
                task=main.procid,
                nodes=main.nodes,
                ranked=main.rank >= 0,
                python=python_of(main.pid),
            )
        )

    def _forget(self, number: int) -> None:
        fd = self._pages.pop(number, None)
        if fd is not None:
            os.close(fd)
        self._signs.pop(number, None)
        self._start_sizes.pop(number, None)
        self._timings.forget(number)

    def remove_pipes_of_ended_ranks(self) -> None:
        """Remove the flight recorder's pipes of ranks that have ended since the last scan."""
        for number, rank in self.ranks.items():
            if not os.path.exists(f"/proc/{rank.main.pid}"):
                recorder.remove_pipe(rank.main, number)

    def poll(self) -> None:
        """Report what changed in task exits, progress and process states since the last poll."""
        for ended in self._exits.read_new():
            self._send(ended)
        changed: list[messages.ProgressEntry] = []
        began_s = self._clock.monotonic_s()
        for number, rank in self.ranks.items():
            record = self._read_page(rank)
            if record is not None:
                if record.timed:
                    self._timings.add(number, record)
                known, now_s = self._signs.get(number), self._clock.monotonic_s()
                since_s = self._polled_s if known is not None else now_s - self._age_s(rank)
                sign = last_sign(number, record, known, since_s, now_s)
                if sign is not known:
                    self._signs[number] = sign
                    changed.append(sign.entry._replace(age_s=round(now_s - sign.at_s, 3)))
                self._report_start(rank, record, sign)
            self._poll_state(number, rank)
        self._polled_s = began_s
        for at in range(0, len(changed), _ENTRIES_PER_MESSAGE):
            self._send(messages.ProgressReport(self._node, tuple(changed[at : at + _ENTRIES_PER_MESSAGE])))
        for entries in self._timings.due(self._clock.monotonic_s()):
            self._send(messages.TimingReport(self._node, entries))

    def _read_page(self, rank: Rank) -> progress.ProgressRecord | None:
        known = self._pages.get(rank.rank)
        if known is not None:
            return progress.read(known)
        for process in (rank.main, *(p for p in rank.tree if p.pid != rank.main.pid)):
            # A path through /proc/PID/fd works across mount and PID namespaces.
            path = progress.find(process.pid)
            if path is None:
                continue
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                continue
            record = progress.read(fd)
            # A child that was forked without the hook inherits the descriptor, but does not report for the rank.
            if record is not None and record.pid == procfs.namespace_pid(process.pid):
                self._pages[rank.rank] = fd
                return record
            os.close(fd)
        return None

    def _age_s(self, rank: Rank) -> float:
        """Return seconds since the rank's process was started."""
        return self._clock.since_boot_s() - rank.main.start_ticks / os.sysconf("SC_CLK_TCK")

    def _report_start(self, rank: Rank, record: progress.ProgressRecord, sign: LastSign) -> None:
        number, sizes = rank.rank, (len(record.marks), len(record.layout), record.first_step)
        if sizes != self._start_sizes.get(number, (0, 0, -1)):
            self._start_sizes[number] = sizes
            now_s, longest_s = self._clock.monotonic_s() + sign.ahead_s, self._age_s(rank)

            def age_s(at_s: float) -> float:
                return round(max(0.0, min(now_s - at_s, longest_s)), 3)

            marks = {name: age_s(at_s) for name, at_s in (record.mark_monotonic_s or {}).items()}
            first = messages.FirstStep(record.first_step, age_s(record.first_step_monotonic_s))
            self._send(messages.RankStart(self._node, number, marks, record.layout, first))

    def _poll_state(self, number: int, rank: Rank) -> None:
        found = _bad_state(rank)
        # Only twice in a row: a process in D for one poll is reading a file.
        if found == self._states_seen_once.get(number, _WELL) and found != self._states.get(number, _WELL):
            self._states[number] = found
            self._send(messages.RankState(self._node, number, *found))
        self._states_seen_once[number] = found

    def progress_for_archive(self) -> dict[int, Any]:
        """Return rank → its entry in a capture's archive."""
        now_s = self._clock.monotonic_s()
        return {
            number: {"step": sign.entry.step, "phase": sign.entry.phase, "age_s": round(now_s - sign.at_s, 3)}
            for number, sign in self._signs.items()
        }


def _bad_state(rank: Rank) -> tuple[str, int]:
    """Return the state to report of a rank, and the process that is in it, as `messages.RankState` describes."""
    found = _WELL
    for process in (rank.main, *(p for p in rank.tree if p.pid != rank.main.pid)):
        stat = procfs.stat(process.pid)
        state = stat.state if stat is not None else ""
        if state in ("T", "t"):
            return "t" if procfs.tracer(process.pid) else state, process.pid
        if state == "D" and found == _WELL:
            found = state, process.pid
    return found


class LastSign(NamedTuple):
    """A rank's last sign of progress.

    Attributes:
        entry: The values of the rank's page, without the age.
        page_s: The time of the sign, by the page.
        at_s: The time of the sign, by this machine's monotonic clock.
    """

    entry: messages.ProgressEntry
    page_s: float
    at_s: float

    @property
    def ahead_s(self) -> float:
        """How far the page's clock is ahead of this machine's clock: 0 for almost every program."""
        return self.page_s - self.at_s


def last_sign(
    number: int, record: progress.ProgressRecord, known: LastSign | None, since_s: float, now_s: float
) -> LastSign:
    """Read a rank's last sign of progress from its page; return `known` if nothing is new since then.

    Args:
        number: The number of the rank.
        record: The rank's page.
        known: The rank's last sign, None for none.
        since_s: When the page was last read or the process was started, by this machine's monotonic clock: a new sign
            is not older. If the page tells an older time, it was written by another clock (a time namespace, a library
            that replaces the clock below Python), and its sign counts as new as this reading.
        now_s: The time of this reading.
    """
    page_s = max(record.step_monotonic_s, record.phase_monotonic_s, record.made_monotonic_s)
    entry = messages.ProgressEntry(
        number,
        record.step,
        record.phase,
        0.0,
        record.calls,
        _finite(record.loss),
        _finite(record.grad_norm),
        record.phase_timeout_s,
        record.loss_call,
    )
    if known is not None and (entry, page_s) == (known.entry, known.page_s):
        return known
    return LastSign(entry, page_s, page_s if since_s <= page_s <= now_s else now_s)


def _finite(value: float | None) -> float | str | None:
    """Return the value for JSON, which has no NaN: NaN is sent as a text, since a loss that is NaN is news."""
    if value is None or value - value == 0:
        return value
    return "nan" if math.isnan(value) else "inf"
