"""The trainer's end: finds this node's persister or starts one, and asks it for memory."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import slurm_robust
from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.saving.shared import wire

_BOOTSTRAP = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from slurm_robust.checkpoint.saving.persister.main import main; main(sys.argv[1:])"
)
COMMAND = [sys.executable, "-c", _BOOTSTRAP, str(Path(slurm_robust.__file__).resolve().parent.parent)]
"""Starts a persister; the descriptors of its socket and of its lifeline follow."""
PROTOCOL = 3
"""Of messages and images; another version of this package does not find a persister that has another one."""
_AGENT_S = 3.0
"""For the agent to listen: it starts with the training, which has to import torch first."""
_SUCCESSOR_S = 15.0
"""For a persister that died to be replaced."""
_ANSWER_S = 120.0
"""For the persister to answer: it may have to write what the trainer before this one left."""


def agent_name(env: Mapping[str, str], uid: int) -> str:
    """Where the agent of this job's watch step listens on this node; empty outside of a job.

    The agent has the same rule: `supervise.agent.persist`.
    """
    job, node = env.get("SLURM_JOB_ID", ""), env.get("SLURMD_NODENAME", "")
    return f"srobust-ckpt{PROTOCOL}-{uid}-{env.get('SLURM_CLUSTER_NAME', '')}-{job}-{node}" if job and node else ""


class PersisterLink:
    """A connection to the persister.

    Args:
        run: The same for all ranks of this run, and for no other run.
        directory: Where checkpoints go, absolute.
        rank: This rank.

    Attributes:
        by_agent: Whether the persister outlives the training step.
    """

    def __init__(self, run: str, directory: Path, rank: int) -> None:
        self.run, self.directory, self.rank = run, directory, rank
        self.by_agent = False
        self._sock: socket.socket | None = None
        self._news: list[dict[str, Any]] = []
        """Told while something else was asked."""
        self.standing: list[dict[str, Any]] = []
        """What a successor of the persister is told anew."""

    def open(self) -> None:
        """Connect, if there is no connection.

        Raises:
            CheckpointError: no persister can be reached or started.
        """
        if self._sock is None:
            try:
                self._sock = self._connected()
            except OSError as error:
                raise CheckpointError(f"no persister can be started on this node: {error}", _INSTEAD) from error

    def held(self) -> int | None:
        """The descriptor of the image that the persister holds for this rank; None where it holds none.

        Raises:
            CheckpointError: the persister is gone.
        """
        _, fds = self.ask({"t": "hello"})
        return fds[0] if fds else None

    def _connected(self) -> socket.socket:
        name = agent_name(os.environ, os.getuid())
        self.by_agent = False
        if name and os.environ.get("SROBUST_ATTEMPT"):
            deadline_s = time.monotonic() + _AGENT_S
            while (sock := wire.connect(name, _ANSWER_S)) is None and time.monotonic() < deadline_s:
                time.sleep(_PAUSE_S)
            if sock is not None:
                self.by_agent = True
                return sock
        own = f"srobust-ckpt{PROTOCOL}-{os.getuid()}-{self.run}-{os.environ.get('SLURMD_NODENAME', '')}"
        deadline_s = time.monotonic() + _ANSWER_S
        while (sock := wire.connect(own, _ANSWER_S)) is None:
            # Of several ranks one can bind the name: that one starts the persister for all.
            with contextlib.suppress(OSError), wire.listener(own) as listening:
                _start(listening.fileno())
            if time.monotonic() > deadline_s:
                raise OSError(f"nobody answers at {own}")
        return sock

    @property
    def alive(self) -> bool:
        """Whether the persister is still there, as far as anybody heard."""
        return self._sock is not None

    def ask(self, message: dict[str, Any], fds: tuple[int, ...] = ()) -> tuple[dict[str, Any], list[int]]:
        """Say something that has an answer, and return it; where the persister dies meanwhile, its successor is asked.

        Raises:
            CheckpointError: nobody answers.
        """
        deadline_s = time.monotonic() + _SUCCESSOR_S
        while True:
            self.open()
            try:
                return self._asked({**message, "directory": str(self.directory), "rank": self.rank}, fds)
            except (OSError, ValueError) as error:
                self.close()
                if time.monotonic() > deadline_s:
                    raise CheckpointError(f"the persister of this node does not answer: {error}", _INSTEAD) from error
                time.sleep(_PAUSE_S)

    def _asked(self, message: dict[str, Any], fds: tuple[int, ...]) -> tuple[dict[str, Any], list[int]]:
        assert self._sock is not None
        wire.send(self._sock, message, fds)
        while (got := wire.receive(self._sock)) is not None:
            if got[0]["t"] not in _NEWS:
                return got
            self._news.append(got[0])
        raise ConnectionResetError("it has ended")

    def adopt(self, fd: int) -> None:
        """Give a new persister the image of this rank, and all that the one before it was told.

        Raises:
            CheckpointError: none can be had.
        """
        self.ask({"t": "adopt"}, (fd,))
        for message in self.standing:
            self.ask(message)

    def image(self, of: int, *, backup: bool) -> int | None:
        """The descriptor of an image that is on this node; None where there is none.

        Raises:
            CheckpointError: the persister is gone.
        """
        _, fds = self.ask({"t": "image", "of": of, "backup": backup})
        return fds[0] if fds else None

    def go(self) -> bool:
        """Tell it that a slot is complete; False where it is gone."""
        if self._sock is not None:
            try:
                wire.send(self._sock, {"t": "go"})
            except OSError:
                self.close()
        return self._sock is not None

    def news(self, timeout_s: float = 0.0) -> list[dict[str, Any]]:
        """How saves and backups ended since; waits for the first one at most so long. Notices its end, too."""
        found, self._news = self._news, []
        while self._sock is not None:
            self._sock.settimeout(timeout_s if not found else 0.0)
            try:
                got = wire.receive(self._sock)
            except (BlockingIOError, TimeoutError):
                break
            except (OSError, ValueError):
                got = None
            if got is None:
                self.close()
                break
            found.append(got[0])
        if self._sock is not None:
            self._sock.settimeout(_ANSWER_S)
        return found

    def close(self) -> None:
        """Let it go."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None


_NEWS = ("ended", "word")
_PAUSE_S = 0.1
_INSTEAD = "Checkpointer(asynchronous=False) writes without one"


def _start(listening_fd: int) -> None:
    process = subprocess.Popen(
        [*COMMAND, str(listening_fd), "-"],
        pass_fds=[listening_fd],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
    )
    # It ends by itself, after this process if need be: nobody is to wait for it.
    process.returncode = 0
