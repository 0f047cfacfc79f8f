"""Reads the kernel log if the job's user may and no node watch does, and sends lines that may tell of a fault.

The supervisor judges whether a line tells of a fault, by the node checks' catalogue, which agents do not load. Lines
about lost disks and file systems that went read-only are not sent: their meaning depends on the mounts of this node.
"""

from __future__ import annotations

import os
import re
import stat
from typing import Iterable, NamedTuple

from slurm_robust.marks.node_findings import NodeFinding
from slurm_robust.supervise.agent import messages
from slurm_robust.supervise.agent.clock import CLOCK, SystemClock
from slurm_robust.supervise.agent.gpu_minors import gpu_address
from slurm_robust.supervise.agent.gpu_use import GpuUse
from slurm_robust.supervise.agent.ranks import Rank

WORDS = (
    *("NVRM", "SXid", "fallen off the bus", "nitAdapter failed", "rm_init_adapter failed", "NV_ERR_RESET_REQUIRED"),
    *("probe routine failed", "devices were initialized", "NETDEV WATCHDOG", "TX timeout", "Keep alive watchdog"),
    *("Fatal error", "health compromised", "health recovery f", "Health issue observed", "recovery flow aborted"),
    *("internal error", "firmware", "Will cause a leak", "Port module event", "temperature", "High Temperature"),
    *("orrected error", "severity", "no action required", " CE ", " UE ", "ncorrected", "achine check:"),
    *("Machine Check", "Memory failure", "memory corruption", "EXT4-fs error", "XFS (", "BTRFS", "SQUASHFS error"),
    *("beyond end of device", "soft lockup", "hard LOCKUP", "detected", "[#", "BUG: ", "kernel BUG at", "Oops"),
)
"""Only lines with one of these words are sent. Every line that the catalogue finds urgent has one of them, except lines
about disks."""
_CANDIDATE = re.compile(b"|".join(re.escape(word.encode()) for word in WORDS))
_RECORD = re.compile(rb"[0-9]{1,5},[0-9]{1,20},([0-9]{1,20}),[^;]{0,64};")
_ABOUT_GPUS = ("NVRM", "SXid")
_KERNEL_LOG = os.makedev(1, 11)
"""The device number of the kernel log: in containers, its path may lead to something else, such as a terminal."""
_READ_BYTES = 8192
"""The kernel's own limit for one record."""
_BYTES_A_TICK = 256 << 10
_FILE_BYTES = 1 << 20
_SENT_A_TICK = 32
"""The most lines sent in a tick. The rest waits in the kernel, which may overwrite it."""
_WAITS_S = 3600.0
_MOST_WAITING = 256
_LATE_S = 10.0
"""A line may come this late, or the kernel's clock may differ from ours by so much."""


class _Line(NamedTuple):
    record: str
    read_s: float
    live: bool
    """Whether the line came after the existing log had been read."""
    about: NodeFinding
    """The finding about which `GpuUse` is asked."""


class KernelWatch:
    """Follows one kernel log, from `look_back_s` before now on. With an empty path there is no log.

    A log that cannot be opened is not tried again. A log that is a file, and not a device, is read from near its end
    on, if it holds raw records as the device gives them.
    """

    def __init__(
        self,
        node: str,
        look_back_s: float,
        send: messages.Handler,
        use: GpuUse,
        *,
        path: str,
        clock: SystemClock = CLOCK,
    ) -> None:
        self._node = node
        self._send = send
        self._use = use
        self._path = path
        self._clock = clock
        self._since_s = clock.since_boot_s() - look_back_s
        self._fd = -1
        self._live = False
        """Whether all lines from before the log was opened have been read."""
        self._rest = b""
        """The line of a log file that is still being written."""
        self._waiting: list[_Line] = []
        """About GPUs, while no rank has shown which GPUs are this job's."""

    def poll(self, ranks: Iterable[Rank], *, watched: bool) -> None:
        """Send the new lines that may concern the job of these ranks, unless a root service has `watched` the node."""
        if watched:
            self._close()
            self._since_s, self._waiting = self._clock.since_boot_s(), []
            return
        if not self._path or (self._fd < 0 and not self._open()):
            return
        new = self._read()
        if not new and not self._waiting:
            return
        self._use.learn(ranks, now=any(line.about.about_gpus for line in new))
        if self._use.unused:
            self._send_all([line for line in new if line.about.about_gpus], unused=True)
        lines = [(line, self._use.concerns(line.about)) for line in (*self._waiting, *new)]
        oldest_s = self._clock.monotonic_s() - _WAITS_S
        self._waiting = [line for line, ours in lines if ours is None and line.read_s > oldest_s][-_MOST_WAITING:]
        self._send_all([line for line, ours in lines if ours])

    def _send_all(self, lines: list[_Line], *, unused: bool = False) -> None:
        now_s, since_boot_s, use = self._clock.now_s(), self._clock.since_boot_s(), self._use
        for at in range(0, len(lines), messages.MAX_RECORDS):
            some = lines[at : at + messages.MAX_RECORDS]
            records, since_s = tuple(line.record for line in some), 0.0
            if all(line.live for line in some):
                since_s = now_s - (self._clock.monotonic_s() - min(line.read_s for line in some)) - _LATE_S
            minors = dict(use.minors)
            self._send(
                messages.KernelRecords(self._node, now_s, since_boot_s, records, minors, use.driver, unused, since_s)
            )

    def _open(self) -> bool:
        try:
            info = os.stat(self._path)
            if stat.S_ISCHR(info.st_mode) and info.st_rdev != _KERNEL_LOG:
                raise PermissionError(self._path)
            self._fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        except OSError:
            self._path = ""
            return False
        if stat.S_ISREG(info.st_mode):
            os.lseek(self._fd, max(0, info.st_size - _FILE_BYTES), os.SEEK_SET)
        self._live, self._rest = False, b""
        return True

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read(self) -> list[_Line]:
        """Return the next candidate lines, within the bounds of a tick."""
        found: list[_Line] = []
        size = 0
        while size < _BYTES_A_TICK and len(found) < _SENT_A_TICK:
            try:
                data = os.read(self._fd, _READ_BYTES)
            except BrokenPipeError:
                size += 128
                continue  # overwritten: the next read goes on at the oldest record that is left
            except BlockingIOError:
                data = b""
            except OSError:
                self._close()
                self._path = ""
                return found
            if not data:
                self._live = True
                break
            size += len(data)
            *lines, rest = (self._rest + data).split(b"\n")
            self._rest = rest[:_READ_BYTES]
            found += [self._line(line) for line in lines if _CANDIDATE.search(line) and self._new(line)]
        return found

    def _new(self, line: bytes) -> bool:
        """Return whether the line is a record, and not from the time of an earlier job."""
        match = _RECORD.match(line)
        # The kernel's clock may differ from ours by seconds after weeks: a line that has just come is new anyway.
        return match is not None and (self._live or int(match[1]) / 1e6 >= self._since_s)

    def _line(self, data: bytes) -> _Line:
        record = data[: messages.MAX_RECORD_CHARS].decode("utf-8", "replace")
        minor = self._use.minors.get(gpu_address(record))
        kind = "xid" if any(word in record for word in _ABOUT_GPUS) else ""
        gpus = (minor,) if kind and minor is not None else ()
        return _Line(record, self._clock.monotonic_s(), self._live, NodeFinding(0, 0.0, "", kind, "", "", gpus))
