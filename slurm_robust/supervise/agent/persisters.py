"""Listens for ranks that save, and starts the persister for their checkpoints (`checkpoint.saving.persister`).

The agent only listens. When the first rank connects, the agent starts the persister and passes it the socket, so a job
that never saves through it costs one descriptor. The persister is a child of the agent, and not of a rank, so it
survives the end of a training step; and the memory of its buffers counts for the watch step.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import Callable

from slurm_robust.supervise.agent.clock import CLOCK, SystemClock
from slurm_robust.supervise.agent.ranks import Target

PROTOCOL = 3
"""Part of the socket's name, so that a rank with another version of this package does not connect."""
FLUSH_S = 60.0
"""Time to write copied data when the agent ends; if Slurm ends the job, KillWait is shorter."""
_BOOTSTRAP = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from slurm_robust.checkpoint.saving.persister.main import main; main(sys.argv[1:])"
)
_POLL_S = 0.02
_AT_ONCE_S = 0.2
"""A process without anything to write ends sooner than this; the supervisor waits a second for the agent."""


def name(target: Target, uid: int) -> str:
    """Return the abstract socket's name; `checkpoint.saving.link.agent_name` has the same rule."""
    return f"srobust-ckpt{PROTOCOL}-{uid}-{target.cluster}-{target.job_id}-{target.node}"


class PersisterHost:
    """The socket, and the persister behind it once a rank has connected."""

    def __init__(self, target: Target, clock: SystemClock = CLOCK) -> None:
        self._clock = clock
        self._name = name(target, os.getuid())
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline = -1

    def listening(self) -> int:
        """Return the descriptor to watch for the first rank; -1 while a persister serves it, or if there is none."""
        if self._process is not None:
            if self._process.poll() is None:
                return -1
            os.close(self._lifeline)
            self._process = None
        if self._socket is None:
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                listener.bind("\0" + self._name)
                listener.listen(1024)
            except OSError:
                # The agent before this one is still ending: the name may be free at the next poll.
                listener.close()
                return -1
            self._socket = listener
        return self._socket.fileno()

    def start(self) -> None:
        """Start the process: a rank has connected."""
        if self._socket is None or self._process is not None:
            return
        root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
        theirs, self._lifeline = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOTSTRAP, root, str(self._socket.fileno()), str(theirs)],
                pass_fds=[self._socket.fileno(), theirs],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # the agent's own carries messages
            )
        except OSError:
            # Without a socket the ranks do not wait for this persister: they start their own.
            os.close(self._lifeline)
            self._socket.close()
            self._socket = None
        finally:
            os.close(theirs)

    def end(self, on_wait: Callable[[], None] = lambda: None) -> bool:
        """Have the persister write what it holds, within a limit, and end.

        Return whether `on_wait` was called: once, if the end takes longer than it would with nothing to write.
        """
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is None:
            return False
        os.close(self._lifeline)
        began_s = self._clock.monotonic_s()
        called = False
        while self._process.poll() is None and self._clock.monotonic_s() - began_s < FLUSH_S:
            if not called and self._clock.monotonic_s() - began_s > _AT_ONCE_S:
                called = True
                on_wait()
            self._clock.pause(_POLL_S)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._process = None
        return called
