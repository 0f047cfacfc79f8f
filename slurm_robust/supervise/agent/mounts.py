"""Finds network file systems of this node that do not answer, by child processes, which may hang in the agent's place.

A mount is silent if a child that asks it has had no answer for `ANSWER_S`. Such a child is killed. A child that cannot
be killed is left behind: it ends when its mount answers or is gone. Until then its mount counts as silent, and no
second child is started for it.
"""

from __future__ import annotations

import os
import re
import signal
import threading

from slurm_robust.supervise.agent import procfs
from slurm_robust.supervise.agent.clock import CLOCK, SystemClock
from slurm_robust.supervise.agent.mount_messages import CheckMounts, MountsChecked
from slurm_robust.supervise.agent.ranks import Rank

ANSWER_S = 20.0
"""A working file system needs milliseconds to answer; one that is busy with a large checkpoint may need seconds."""
_POLL_S = 0.02
_MAX_MOUNTS = 32
_TYPES = frozenset(
    {
        *("nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "fuse", "wekafs", "9p", "pvfs2", "panfs"),
        *("afs", "ocfs2", "gfs2", "virtiofs"),
    }
)
_OWNER = re.compile(r"\buser_id=(\d+)")
"""Matches the user who mounted a FUSE file system, among its options."""


def network_mounts(mountinfo: str) -> tuple[str, ...]:
    """Return the mount points of network file systems in the text of /proc/PID/mountinfo, each once.

    A FUSE file system that an ordinary user mounted is left out: its server is a program of that user, and not a part
    of the node.
    """
    found: dict[str, None] = {}
    for line in mountinfo.splitlines():
        place, _, rest = line.partition(" - ")
        kind, words = rest.partition(" ")[0], place.split(" ")
        owner = _OWNER.search(rest)
        if len(words) > 4 and (kind in _TYPES or kind.startswith("fuse.")) and (owner is None or owner[1] == "0"):
            # Blanks, tabs, newlines and backslashes in a path are written as octal numbers.
            path = words[4]
            for octal, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
                path = path.replace(octal, character)
            found[path] = None
    return tuple(found)[:_MAX_MOUNTS]


class MountProbe:
    """Asks mounts whether they answer."""

    def __init__(self, clock: SystemClock = CLOCK, answer_s: float = ANSWER_S) -> None:
        self._clock = clock
        self._answer_s = answer_s
        self._lock = threading.Lock()
        self._children: dict[str, int] = {}
        """Mount → pid of the child that asks it."""
        self._asked_s: dict[str, float] = {}
        """Mount → when its child was started."""

    @property
    def busy(self) -> bool:
        """Whether a question goes on."""
        return self._lock.locked()

    def silent(self, mounts: tuple[str, ...], within_s: float = -1.0) -> tuple[str, ...]:
        """Return the mounts that do not answer in this time. A mount that gives an error, or is not there, does answer.

        A mount that has already left an earlier question unanswered for so long is not waited for again.
        """
        mounts = mounts[:_MAX_MOUNTS]
        within_s = self._answer_s if within_s < 0 else within_s
        with self._lock:
            self._ended()
            waiting = set(mounts)
            while True:
                now_s = self._clock.monotonic_s()
                for mount in waiting - self._children.keys():
                    self._children[mount], self._asked_s[mount] = _ask(mount), now_s
                # A child that was killed after an earlier question gives no answer when it ends.
                waiting -= {mount for mount, status in self._ended() if os.WIFEXITED(status)}
                if all(now_s - self._asked_s.get(mount, now_s) >= within_s for mount in waiting):
                    break
                self._clock.pause(_POLL_S)
            for mount in waiting & self._children.keys():
                os.kill(self._children[mount], signal.SIGKILL)
            return tuple(mount for mount in mounts if mount in waiting)

    def _ended(self) -> list[tuple[str, int]]:
        """Return the mounts whose children have ended, and the children's statuses."""
        found = []
        for mount, pid in list(self._children.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del self._children[mount], self._asked_s[mount]
                found.append((mount, status))
        return found

    def answer(self, node: str, request: CheckMounts) -> MountsChecked:
        """Check all network mounts of this node, or only those that the request names.

        A path that is not mounted here would answer at once. If it counted, a silent mount that only one node has would
        look like a fault of that node.
        """
        mounts = tuple(m for m in network_mounts(procfs.mountinfo()) if not request.mounts or m in request.mounts)
        silent = self.silent(mounts)
        return MountsChecked(node, request.request_id, silent, tuple(m for m in mounts if m not in silent))


def held(ranks: list[Rank]) -> bool:
    """Return whether a process of these ranks sleeps in the kernel and cannot be woken (state D)."""
    states = (procfs.stat(process.pid) for rank in ranks for process in rank.tree)
    return any(stat is not None and stat.state == "D" for stat in states)


def _ask(mount: str) -> int:
    """Start a child that asks this mount, and return its pid.

    Only fork: starting a program would hang the agent's thread if the program's file is on the dead mount.
    """
    pid = os.fork()
    if pid:
        return pid
    try:
        # srun waits until no process holds the step's output any more.
        os.closerange(0, os.sysconf("SC_OPEN_MAX"))
        os.statvfs(mount)
    finally:
        os._exit(0)
