"""Where this node's ranks find a process that keeps and writes their checkpoints (`checkpoint.saving.persister`).

The agent only listens. It starts that process when the first rank comes, and hands it the socket; a job that never
saves through it costs one descriptor. It is the agent's child, not a rank's, so it lives when a training step is
killed; and the pages of its buffers are the watch step's.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from typing import Callable

from slurm_robust.supervise.agent.ranks import Target

PROTOCOL = 3
"""In the name, so that a rank with another version of this package does not find it."""
FLUSH_S = 60.0
"""For what was copied to be written when the agent ends; where Slurm ends the job, KillWait is shorter."""
_BOOTSTRAP = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from slurm_robust.checkpoint.saving.persister.main import main; main(sys.argv[1:])"
)
_POLL_S = 0.02
_AT_ONCE_S = 0.2
"""A process that has nothing to write ends in less; who waits for the agent gives it a second."""


def name(target: Target, uid: int) -> str:
    """The abstract socket's name; `checkpoint.saving.link.agent_name` has the same rule."""
    return f"srobust-ckpt{PROTOCOL}-{uid}-{target.cluster}-{target.job_id}-{target.node}"


class PersisterHost:
    """The socket, and the process behind it once a rank has come."""

    def __init__(self, target: Target) -> None:
        self._name = name(target, os.getuid())
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline = -1

    def listening(self) -> int:
        """The descriptor to watch for the first rank; -1 while the process serves it, or where nobody can listen."""
        if self._process is not None:
            if self._process.poll() is None:
                return -1
            os.close(self._lifeline)
            self._process = None
        if self._socket is None:
            found = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                found.bind("\0" + self._name)
                found.listen(1024)
            except OSError:
                # An agent before this one that still ends: the next look may find the name free.
                found.close()
                return -1
            self._socket = found
        return self._socket.fileno()

    def start(self) -> None:
        """A rank has come."""
        if self._socket is None or self._process is not None:
            return
        root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
        theirs, self._lifeline = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOTSTRAP, root, str(self._socket.fileno()), str(theirs)],
                pass_fds=[self._socket.fileno(), theirs],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # the agent's own is the channel
            )
        except OSError:
            # Ranks that wait must not wait for nobody: they start one of their own.
            os.close(self._lifeline)
            self._socket.close()
            self._socket = None
        finally:
            os.close(theirs)

    def end(self, waiting: Callable[[], None] = lambda: None) -> bool:
        """Have the process write what it holds, bounded, and end.

        Args:
            waiting: Called where that takes longer than an end without anything to write.

        Returns:
            Whether it was called.
        """
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is None:
            return False
        os.close(self._lifeline)
        began_s = time.monotonic()
        called = False
        while self._process.poll() is None and time.monotonic() - began_s < FLUSH_S:
            if not called and time.monotonic() - began_s > _AT_ONCE_S:
                called = True
                waiting()
            time.sleep(_POLL_S)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._process = None
        return called
