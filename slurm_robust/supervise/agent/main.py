"""Runs the agent's loop: find the ranks, report changes, carry out what the supervisor asks (`messages`).

The end of input ends the agent.
"""

from __future__ import annotations

import os
import selectors
import signal
import sys
import threading

from slurm_robust.supervise.agent import messages, wire
from slurm_robust.supervise.agent.clock import CLOCK, SystemClock
from slurm_robust.supervise.agent.gpu_use import GpuUse
from slurm_robust.supervise.agent.kernel_watch import KernelWatch
from slurm_robust.supervise.agent.node_ring import NO_FILES, NodeFiles, NodeRing
from slurm_robust.supervise.agent.persisters import PersisterHost
from slurm_robust.supervise.agent.port_watch import PortWatch
from slurm_robust.supervise.agent.rank_table import RankTable
from slurm_robust.supervise.agent.ranks import Target, cluster
from slurm_robust.supervise.agent.repeated_send import RepeatedSend
from slurm_robust.supervise.agent.request_runner import RequestRunner
from slurm_robust.supervise.agent.sigterm import POLL_S, SigtermState

_RESCAN_S = 1.0
_HEARTBEAT_S = 2.0


class Agent:
    """The agent of one node.

    The agent reads the file of node findings, or else the kernel log, from `look_back_s` before its start on.
    """

    def __init__(
        self,
        target: Target,
        tick_s: float,
        py_spy: str,
        *,
        files: NodeFiles = NO_FILES,
        look_back_s: float = 0.0,
        clock: SystemClock = CLOCK,
    ) -> None:
        self._node = target.node
        self._tick_s = tick_s
        self._clock = clock
        self._table = RankTable(target, self.send, clock)
        self._requests = RequestRunner(target, self._table, self.send, py_spy, clock)
        self._persister = PersisterHost(target, clock)
        self._use = use = GpuUse(clock)
        since_s = clock.now_s() - look_back_s
        self._faults = RepeatedSend(self.send, clock)
        send = self._faults.send
        self._ring = NodeRing(target.node, files.ring_folder, since_s, send, clock=clock, use=use)
        ignore = tuple(filter(None, files.ignored_ports.split(",")))
        self._ports = PortWatch(target.node, send, ignore=ignore, clock=clock)
        log = files.kernel_log.replace("%n", target.node)
        self._kernel = KernelWatch(target.node, look_back_s, send, use, path=log, clock=clock)
        self._sigterm = SigtermState(clock)
        self._selector = selectors.DefaultSelector()
        self._persister_fd = -1
        self._write_lock = threading.Lock()
        self._sent = 0
        self._sent_at_s = 0.0
        self._decoder = wire.Decoder()
        self._unfinished_line = b""

    def send(self, message: messages.FromAgent) -> None:
        """Send one message, from any thread. If the supervisor is gone, the agent ends."""
        with self._write_lock:
            self._sent += 1
            lines = wire.encode(self._node, self._sent, messages.encode(message))
            try:
                sys.stdout.write("".join(line + "\n" for line in lines))
                sys.stdout.flush()
            except (OSError, ValueError):
                self._sigterm.supervisor_gone()
            self._sent_at_s = self._clock.monotonic_s()

    def run(self) -> None:
        """Run until the supervisor is gone; if Slurm ends the job, run as long as a rank lives."""
        self._sigterm.listen()
        try:
            self._loop()
        finally:
            self._table.remove_pipes_of_ended_ranks()
            self._sigterm.supervisor_gone()  # the flush takes its time, whether or not anybody reads our messages
            if self._persister.end(lambda: self.send(messages.Flushing(self._node))):
                self.send(messages.Flushed(self._node))

    def _loop(self) -> None:
        self.send(messages.Hello(self._node, os.getpid()))
        os.set_blocking(0, False)
        try:
            self._selector.register(0, selectors.EVENT_READ)
        except PermissionError:
            return  # standard input is a file or /dev/null: no supervisor can ever write to us
        next_tick_s = next_scan_s = 0.0
        while True:
            now_s = self._clock.monotonic_s()
            if now_s >= next_scan_s:
                self._table.rescan()
                self._watch_persister_socket()
                next_scan_s = now_s + _RESCAN_S
            if now_s >= next_tick_s:
                self._table.poll()
                self._ring.poll(self._table.ranks.values())
                self._ports.poll(watched=self._ring.present)
                self._kernel.poll(self._table.ranks.values(), watched=self._ring.present)
                self._faults.poll()
                next_tick_s = now_s + self._tick_s
            if now_s - self._sent_at_s >= _HEARTBEAT_S:
                self.send(messages.Heartbeat(self._node, len(self._table.ranks)))
            if self._sigterm.end_is_near and self._may_end():
                return
            self._serve(now_s + POLL_S if self._sigterm.end_is_near else min(next_tick_s, next_scan_s))

    def _may_end(self) -> bool:
        """Return whether no rank needs this agent, not even a rank that has just started."""
        if self._sigterm.may_end(self._table.ranks.values()):
            self._table.rescan()
        return self._sigterm.may_end(self._table.ranks.values())

    def _serve(self, until_s: float) -> None:
        """Serve the supervisor and a rank that wants the persister, at most until then."""
        for key, _ in self._selector.select(max(0.0, until_s - self._clock.monotonic_s())):
            if key.fd == self._persister_fd:
                self._persister.start()
                self._watch_persister_socket()
                continue
            data = os.read(0, 65536)
            if not data:
                self._sigterm.supervisor_gone()
                self._selector.unregister(0)
                continue
            *lines, self._unfinished_line = (self._unfinished_line + data).split(b"\n")
            for line in lines:
                raw = self._decoder.feed(line.decode("utf-8", "replace"))
                request = messages.to_agent(raw) if raw is not None else None
                if isinstance(request, messages.WatchAttempt):
                    self._use.new_attempt()
                if request is not None:
                    self._requests.run(request)

    def _watch_persister_socket(self) -> None:
        """Wait for ranks on the persister's socket while no persister serves them."""
        fd = self._persister.listening()
        if fd != self._persister_fd:
            if self._persister_fd >= 0:
                self._selector.unregister(self._persister_fd)
            if fd >= 0:
                self._selector.register(fd, selectors.EVENT_READ)
            self._persister_fd = fd


def main(argv: list[str]) -> None:
    """Run the agent: `main(["JOBID", "ATTEMPT", "TICK_S", "PY_SPY", "LOOK_BACK_S", …])`, then `NodeFiles`' fields.

    All arguments after PY_SPY may be left out. Everything else is read from Slurm's environment.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # srun ends us, not a key on the user's terminal
    job_id, attempt, tick_s, py_spy, *more = argv
    look_back_s, *files = more or ["0"]
    env = os.environ
    node = env.get("SLURMD_NODENAME") or os.uname().nodename.split(".")[0]
    target = Target(job_id, node, attempt, env.get("SLURM_STEP_ID", ""), cluster(env))
    Agent(target, float(tick_s), py_spy, files=NodeFiles(*files), look_back_s=float(look_back_s)).run()
