"""A rank's connection to its node's persister: finds or starts the persister, and exchanges messages with it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

import slurm_robust
from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.saving.shared import messages, wire
from slurm_robust.checkpoint.saving.shared.messages import PROTOCOL, RankRequest

_BOOTSTRAP = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from slurm_robust.checkpoint.saving.persister.main import main; main(sys.argv[1:])"
)
COMMAND = [sys.executable, "-c", _BOOTSTRAP, str(Path(slurm_robust.__file__).resolve().parent.parent)]
"""Starts a persister; the descriptors of its socket and of its lifeline follow."""
_AGENT_S = 3.0
"""Wait for the agent to listen: it starts with the training, which has to import torch first."""
_SUCCESSOR_S = 15.0
"""Wait for a persister that died to be replaced."""
_ANSWER_S = 120.0
"""The wait for the persister's answer: it may have to write what the process before this one left."""
_POLL_S = 0.1
_REMEDY = "Checkpointer(asynchronous=False) writes without a persister"
_Reply = TypeVar("_Reply", bound=messages.PersisterReply)


def agent_name(env: Mapping[str, str], uid: int) -> str:
    """Return the socket name of this node's agent of this job's watch step; empty outside of a job.

    The agent has the same rule: `supervise.agent.persisters`.
    """
    job, node = env.get("SLURM_JOB_ID", ""), env.get("SLURMD_NODENAME", "")
    cluster = env.get("SLURM_WORKING_CLUSTER", "").partition(":")[0] or env.get("SLURM_CLUSTER_NAME", "")
    return f"srobust-ckpt{PROTOCOL}-{uid}-{cluster}-{job}-{node}" if job and node else ""


class PersisterLink:
    """A connection to the persister.

    Args:
        run: A name that all ranks of this run have, and no other run.
        directory: Where checkpoints are written, absolute.
        rank: This rank.

    Attributes:
        by_agent: Whether the persister outlives the training step.
        replayed: Requests that a new persister is sent again after it has adopted the image.
    """

    def __init__(self, run: str, directory: Path, rank: int) -> None:
        self.run, self.directory, self.rank = run, directory, rank
        self.by_agent = False
        self.replayed: list[tuple[RankRequest, type[messages.PersisterReply]]] = []
        self._sock: socket.socket | None = None
        self._notifications: list[messages.Notification] = []
        """Received while waiting for a reply."""

    def open(self) -> None:
        """Connect, if there is no connection. Raises CheckpointError if no persister can be reached or started."""
        if self._sock is None:
            try:
                self._sock = self._connected()
            except OSError as error:
                raise CheckpointError(f"no persister can be started on this node: {error}", _REMEDY) from error

    def _connected(self) -> socket.socket:
        name = agent_name(os.environ, os.getuid())
        self.by_agent = False
        if name and os.environ.get("SROBUST_ATTEMPT"):
            deadline_s = time.monotonic() + _AGENT_S
            while (sock := wire.connect(name, _ANSWER_S)) is None and time.monotonic() < deadline_s:
                time.sleep(_POLL_S)
            if sock is not None:
                self.by_agent = True
                return sock
        own = f"srobust-ckpt{PROTOCOL}-{os.getuid()}-{self.run}-{os.environ.get('SLURMD_NODENAME', '')}"
        deadline_s = time.monotonic() + _ANSWER_S
        while (sock := wire.connect(own, _ANSWER_S)) is None:
            # Of several ranks only one can bind the name: that one starts the persister for all.
            with contextlib.suppress(OSError), wire.listener(own) as listening:
                _start(listening.fileno())
            if time.monotonic() > deadline_s:
                raise OSError(f"no process answers at {own}")
        return sock

    @property
    def alive(self) -> bool:
        """False once the connection is known to be closed."""
        return self._sock is not None

    def ask(self, request: RankRequest, reply: type[_Reply], fds: tuple[int, ...] = ()) -> tuple[_Reply, list[int]]:
        """Send a request and return its reply, of class `reply`; if the persister dies, ask the one that replaces it.

        Raises:
            CheckpointError: no persister answers.
        """
        request = msgspec.structs.replace(request, directory=str(self.directory), rank=self.rank)
        deadline_s = time.monotonic() + _SUCCESSOR_S
        while True:
            self.open()
            try:
                return self._asked(request, reply, fds)
            except (OSError, ValueError) as error:
                self.close()
                if time.monotonic() > deadline_s:
                    raise CheckpointError(f"the persister of this node does not answer: {error}", _REMEDY) from error
                time.sleep(_POLL_S)

    def _asked(self, request: RankRequest, reply: type[_Reply], fds: tuple[int, ...]) -> tuple[_Reply, list[int]]:
        assert self._sock is not None
        wire.send(self._sock, request, fds)
        while (got := wire.receive(self._sock, messages.FromPersister)) is not None:
            message, received = got
            if isinstance(message, reply):
                return message, received
            if not isinstance(message, (messages.SaveEnded, messages.Notice)):
                raise ValueError(f"{message} answers {request}")  # noqa: TRY004 (the persister is wrong)
            self._notifications.append(message)
        raise ConnectionResetError("it has ended")

    def held_image(self) -> int | None:
        """Return the descriptor of the image that the persister holds for this rank, or None; errors as `ask`."""
        _, fds = self.ask(messages.AskHeldImage(), messages.HeldImage)
        return fds[0] if fds else None

    def image(self, of: int, *, backup: bool) -> int | None:
        """Return the descriptor of an image that is on this node, or None; CheckpointError as `ask`."""
        _, fds = self.ask(messages.AskImage(of=of, backup=backup), messages.ImageIs)
        return fds[0] if fds else None

    def adopt(self, fd: int) -> None:
        """Give a new persister the image of this rank, and repeat earlier requests; CheckpointError as `ask`."""
        self.ask(messages.AdoptImage(), messages.ImageAdopted, (fd,))
        for request, reply in self.replayed:
            self.ask(request, reply)

    def slot_complete(self) -> bool:
        """Notify the persister that a slot is complete; False if it is gone."""
        if self._sock is not None:
            try:
                wire.send(self._sock, messages.SlotComplete())
            except OSError:
                self.close()
        return self._sock is not None

    def notifications(self, timeout_s: float = 0.0) -> list[messages.Notification]:
        """Return how saves and backups have ended since the last call; wait at most `timeout_s` for the first one."""
        found, self._notifications = self._notifications, []
        while self._sock is not None:
            self._sock.settimeout(timeout_s if not found else 0.0)
            try:
                got = wire.receive(self._sock, messages.Notification)
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
        """Disconnect."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None


def _start(listening_fd: int) -> None:
    process = subprocess.Popen(
        [*COMMAND, str(listening_fd), "-"],
        pass_fds=[listening_fd],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
    )
    process.returncode = 0  # it ends by itself, perhaps after this process: Popen must not wait for it
