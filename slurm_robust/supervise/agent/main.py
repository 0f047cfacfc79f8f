"""The agent's loop: look at the ranks, say what changed, do what the supervisor asks.

Says (all carry `n`, the node): `hello`, `rank` (found), `gone`, `p` (progress), `t` (timings), `marks`, `state`
(stopped, uninterruptible, or fine again), `exit` (how a task ended, where the SPANK plugin tells), `hb` (alive), `cap`
(a capture), `ras` (what NCCL sees of the whole job), `clean` (what is left of an ended attempt).
Is told: `watch` (another attempt), `capture`, `clean`, `quit`. End of input ends it.
"""

from __future__ import annotations

import base64
import json
import math
import os
import selectors
import signal
import sys
import threading
import time
import zlib
from typing import Any

from slurm_robust import progress
from slurm_robust.supervise.agent import procfs, ras, recorder, wire
from slurm_robust.supervise.agent.capture import capture
from slurm_robust.supervise.agent.exits import Exits
from slurm_robust.supervise.agent.gpu_holders import holders
from slurm_robust.supervise.agent.kill import kill
from slurm_robust.supervise.agent.persisters import PersisterHost
from slurm_robust.supervise.agent.ranks import ProcessFinder, StepProcess, Rank, Target, group, identity, left_behind
from slurm_robust.supervise.agent.sigterm import POLL_S, SigtermState
from slurm_robust.supervise.agent.timings import TimingsQueue

_RESCAN_S = 1.0
_HEARTBEAT_S = 2.0
_CLEAN_POLL_S = 0.05
_BAD_STATES = {"T": "T", "t": "T", "D": "D"}


class Agent:
    """One node's agent."""

    def __init__(self, target: Target, tick_s: float, py_spy: str) -> None:
        self.node = target.node
        self.finder = ProcessFinder(target)
        self.tick_s = tick_s
        self.py_spy = py_spy
        self.ranks: dict[int, Rank] = {}
        self._records: dict[int, tuple[int, int]] = {}  # rank → (pid, file descriptor of its progress)
        self._last: dict[int, Any] = {}
        self._told: dict[int, tuple[int, int, int]] = {}
        self._states: dict[int, str] = {}
        self._pending: dict[int, str] = {}
        self._orphans: set[tuple[int, int]] = set()  # (pid, start) of what dead ranks left
        self._exits = Exits()
        self._cleaned: set[object] = set()  # ids of `clean` that were begun: it is told again and again
        self._number = 0
        self._timings = TimingsQueue(time.monotonic())
        self._write_lock = threading.Lock()
        self._said_at = 0.0
        self._persist = PersisterHost(target)
        self._leaving = SigtermState()
        self._knocking = -1

    # -- saying ------------------------------------------------------------------------------------------------

    def say(self, kind: str, **fields: Any) -> None:
        """Send one message; a supervisor that is gone ends the agent."""
        with self._write_lock:
            self._number += 1
            message = {"t": kind, "n": self.node}
            message.update(fields)
            text = "".join(line + "\n" for line in wire.encode(self.node, self._number, message))
            try:
                sys.stdout.write(text)
                sys.stdout.flush()
            except (OSError, ValueError):
                self._leaving.alone()
            self._said_at = time.monotonic()

    # -- looking -----------------------------------------------------------------------------------------------

    def rescan(self) -> None:
        """Find the ranks anew; report who came and who went."""
        everyone = self.finder.members()
        for member in everyone:
            if member.exits:
                self._exits.follow(member.exits, member.step_id)
        found = self._ranks_among(everyone)
        left = left_behind(self.ranks, found)
        if left:
            self._orphans |= left
            found = self._ranks_among(everyone)
        tasks = {m.procid for m in everyone if identity(m) not in self._orphans}
        for number, rank in found.items():
            known = self.ranks.get(number)
            if known is None or known.main.pid != rank.main.pid:
                self._close(number)
                self.say(
                    "rank",
                    rank=number,
                    pid=rank.main.pid,
                    task=rank.main.procid,
                    step_id=rank.step_id,
                    world=rank.world,
                    nodes=rank.main.nodes,
                    ranked=rank.main.rank >= 0,
                    at=time.time(),
                )
        for number in [n for n in self.ranks if n not in found]:
            main = self.ranks[number].main
            # Where torchrun or a shell still stands above it, that one decides what its end means.
            self.say("gone", rank=number, pid=main.pid, at=time.time(), task_lives=main.procid in tasks)
            recorder.remove_pipe(main, number)
            self._close(number)
            self._states.pop(number, None)
        self.ranks = found

    def _ranks_among(self, members: list[StepProcess]) -> dict[int, Rank]:
        return {r.rank: r for r in group([m for m in members if identity(m) not in self._orphans])}

    def _close(self, number: int) -> None:
        pid_fd = self._records.pop(number, None)
        if pid_fd is not None:
            os.close(pid_fd[1])
        self._last.pop(number, None)
        self._told.pop(number, None)
        self._timings.forget(number)

    def _record(self, rank: Rank) -> progress.ProgressRecord | None:
        held = self._records.get(rank.rank)
        if held is not None:
            return progress.read(held[1])
        for member in (rank.main, *tuple(m for m in rank.tree if m.pid != rank.main.pid)):
            # Going through /proc/PID/fd works across mount and PID namespaces.
            path = progress.find(member.pid)
            if path is None:
                continue
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                continue
            record = progress.read(fd)
            # A child that was forked without the hook inherits the descriptor, but not the right to speak.
            if record is not None and record.pid == procfs.namespace_pid(member.pid):
                self._records[rank.rank] = (member.pid, fd)
                return record
            os.close(fd)
        return None

    def look(self) -> None:
        """Report what changed in progress and process states since the last look."""
        for ended in self._exits.news():
            self.say("exit", **ended._asdict())
        changed: list[Any] = []
        for number, rank in self.ranks.items():
            record = self._record(rank)
            if record is not None:
                if record.timed:
                    self._timings.take(number, record)
                entry = progress_entry(record)
                if entry != self._last.get(number):
                    self._last[number] = entry
                    changed.append([number, *entry])
                said = (len(record.marks), len(record.layout), record.first_step)
                if said != self._told.get(number, (0, 0, -1)):
                    self._told[number] = said
                    first = [record.first_step, record.first_step_at_s]
                    self.say("marks", rank=number, marks=record.marks, layout=record.layout, first=first)
            self._look_state(number, rank)
        for i in range(0, len(changed), 8):
            self.say("p", r=changed[i : i + 8])
        for entries in self._timings.due(time.monotonic()):
            self.say("t", r=entries)

    def _look_state(self, number: int, rank: Rank) -> None:
        worst, pid = "", 0
        for member in rank.tree:
            stat = procfs.stat(member.pid)
            if stat and stat.state in _BAD_STATES and worst != "T":
                worst, pid = _BAD_STATES[stat.state], member.pid
        # Twice in a row: a process in D for one tick is reading a file.
        if worst == self._pending.get(number, "") and worst != self._states.get(number, ""):
            self._states[number] = worst
            self.say("state", rank=number, s=worst, pid=pid, at=time.time())
        self._pending[number] = worst

    # -- being told --------------------------------------------------------------------------------------------

    def told(self, message: dict[str, Any]) -> bool:
        """Do what the supervisor asks; False where it is to end."""
        kind = message["t"]
        if kind == "quit":
            return False
        if kind == "watch":
            self.finder.watch(str(message.get("attempt", "")))
            for number in list(self.ranks):
                self._close(number)
            self.ranks.clear()
            self._states.clear()
            self._orphans.clear()
            self._exits.forget()
        elif kind == "capture":
            self.rescan()
            # In a thread: heartbeats go on while py-spy works.
            threading.Thread(target=self._capture, args=(message, list(self.ranks.values())), daemon=True).start()
            if message.get("ras") == self.node:
                threading.Thread(target=self._ask_nccl, args=(message, list(self.ranks.values())), daemon=True).start()
        elif kind == "clean" and (not message.get("id") or message["id"] not in self._cleaned):
            self._cleaned.add(message.get("id"))
            threading.Thread(target=self._clean, args=(message,), daemon=True).start()
        return True

    def _capture(self, message: dict[str, Any], ranks: list[Rank]) -> None:
        now = time.time()
        known = {
            n: {"step": e[0], "phase": e[1], "age_s": round(max(0.0, now - e[2]), 3)} for n, e in self._last.items()
        }
        archive = capture(
            ranks,
            known,
            node=self.node,
            round_number=int(message.get("round", 1)),
            py_spy=self.py_spy,
            timeout_s=float(message.get("timeout_s", 10.0)),
            with_recorder=bool(message.get("recorder", True)),
        )
        blob = base64.b64encode(zlib.compress(json.dumps(archive).encode(), 6)).decode()
        self.say("cap", id=message.get("id"), blob=blob)

    def _ask_nccl(self, message: dict[str, Any], ranks: list[Rank]) -> None:
        """Ask NCCL's RAS service what it sees of the whole job; nothing is said where there is none."""
        if not ranks:
            return
        pids = [m.pid for r in ranks for m in r.tree]
        answer = ras.ask(pids, procfs.environ(ranks[0].main.pid), float(message.get("timeout_s", 10.0)))
        if answer.json is not None or answer.text or answer.error:
            told = {"at_s": time.time(), "json": answer.json, "text": answer.text, "error": answer.error}
            blob = base64.b64encode(zlib.compress(json.dumps(told).encode(), 6)).decode()
            self.say("ras", id=message.get("id"), blob=blob)

    def _clean(self, message: dict[str, Any]) -> None:
        """Wait until no process of an ended attempt is left; what outlives its step is killed, being an orphan."""
        deadline = time.monotonic() + float(message.get("timeout_s", 10.0))
        steps = {str(step) for step in message.get("steps", [])}
        finder = ProcessFinder(self.finder.target._replace(attempt=str(message.get("attempt", ""))))
        while True:
            # A process whose environment no longer says whose it is (a server, a container) may hold a GPU yet.
            left = finder.members() or holders(self.finder.target, steps)
            if not left or time.monotonic() > deadline:
                break
            kill(left)
            time.sleep(_CLEAN_POLL_S)
        self.say("clean", id=message.get("id"), left=[m.pid for m in left][:50])

    # -- living ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Live until the supervisor is gone or says so; where Slurm ends the job, as long as ranks do."""
        self._leaving.listen()
        try:
            self._live()
        finally:
            for number, rank in self.ranks.items():
                if not os.path.exists(f"/proc/{rank.main.pid}"):
                    recorder.remove_pipe(rank.main, number)
            self._leaving.alone()  # what is written now takes its time, whoever listens
            if self._persist.end(lambda: self.say("flushing")):
                self.say("flushed")

    def _over(self) -> bool:
        """Whether nobody needs this agent; ranks that came just now do."""
        if self._leaving.over(self.ranks.values()):
            self.rescan()
        return self._leaving.over(self.ranks.values())

    def _watch_door(self, selector: selectors.BaseSelector) -> None:
        """Look for ranks with checkpoints while no process serves them yet."""
        fd = self._persist.listening()
        if fd != self._knocking:
            if self._knocking >= 0:
                selector.unregister(self._knocking)
            if fd >= 0:
                selector.register(fd, selectors.EVENT_READ)
            self._knocking = fd

    def _live(self) -> None:
        self.say("hello", pid=os.getpid(), v=1)
        os.set_blocking(0, False)
        selector = selectors.DefaultSelector()
        try:
            selector.register(0, selectors.EVENT_READ)
        except PermissionError:
            return  # standard input is a file or /dev/null: nobody could ever talk to us
        decoder, buffered = wire.Decoder(), b""
        next_tick = next_scan = 0.0
        while True:
            now = time.monotonic()
            if now >= next_scan:
                self.rescan()
                self._watch_door(selector)
                next_scan = now + _RESCAN_S
            if now >= next_tick:
                self.look()
                next_tick = now + self.tick_s
            if now - self._said_at >= _HEARTBEAT_S:
                self.say("hb", ranks=len(self.ranks))
            if self._leaving.near and self._over():
                return
            until = now + POLL_S if self._leaving.near else min(next_tick, next_scan)
            for key, _ in selector.select(max(0.0, until - time.monotonic())):
                if key.fd == self._knocking:
                    self._persist.start()
                    self._watch_door(selector)
                    continue
                data = os.read(0, 65536)
                if not data:
                    self._leaving.alone()
                    selector.unregister(0)
                    continue
                *lines, buffered = (buffered + data).split(b"\n")
                for line in lines:
                    message = decoder.feed(line.decode("utf-8", "replace"))
                    if message is not None and not self.told(message):
                        return


def progress_entry(record: progress.ProgressRecord) -> list[Any]:
    """What goes over the channel: step, phase, time of the last sign of life, calls, loss, grad norm, phase limit."""
    return [
        record.step,
        record.phase,
        round(max(record.step_at_s, record.phase_at_s, record.made_at_s), 3),
        record.calls,
        _finite(record.loss),
        _finite(record.grad_norm),
        _finite(record.phase_timeout_s),
    ]


def _finite(value: float | None) -> Any:
    """JSON has no NaN; it travels as a text, since a NaN loss is news."""
    if value is None or value - value == 0:
        return value
    return "nan" if math.isnan(value) else "inf"


def main(argv: list[str]) -> None:
    """Entry point: `main(["JOBID", "ATTEMPT", "TICK_S", "PY_SPY"])`; the rest is in Slurm's environment."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # srun decides about us, not a key on the user's terminal
    job_id, attempt, tick_s, py_spy = argv
    node = os.environ.get("SLURMD_NODENAME") or os.uname().nodename.split(".")[0]
    env = os.environ
    target = Target(job_id, node, attempt, env.get("SLURM_STEP_ID", ""), env.get("SLURM_CLUSTER_NAME", ""))
    Agent(target, float(tick_s), py_spy).run()
