"""Defines the messages between launcher and supervisor, over a socket pair: one JSON object in each line.

`do` names an order of the supervisor, `ev` a report of the launcher. Both ends use these classes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from slurm_robust.supervise.agent.codec import Codec


class LauncherReady(NamedTuple):
    """The launcher is ready; it has not started an srun so far."""


class SrunStarted(NamedTuple):
    """Srun runs. `evicted` are the nodes that its launch left out, kept here for a supervisor that is started again."""

    attempt: str
    pid: int
    evicted: tuple[str, ...] = ()


class SrunEnded(NamedTuple):
    """Srun has ended, with this exit code as a shell would give it."""

    attempt: str
    code: int
    evicted: tuple[str, ...] = ()


class SrunSignalled(NamedTuple):
    """Srun has received this signal: from a terminal, a script, or Slurm. Repeated to a supervisor that starts later.

    `at_s` is when the launcher received it, on the monotonic clock, which all processes of a machine share.
    """

    attempt: str
    number: int
    at_s: float


class StartedEarly(NamedTuple):
    """Srun was started before there was a supervisor, so that it need not wait for one.

    Attributes:
        lineage: The training's name that the ranks were given.
        resume_path: The checkpoint that the ranks were given, empty for none.
        searched: Whether a checkpoint folder was named.
        skipped: Batches that the data loader is to leave out.
        notes: Why newer checkpoints were passed over.
        output_from: Output file → its size when srun was started.
    """

    attempt: str
    lineage: str
    resume_path: str
    resume_step: int
    searched: bool
    skipped: str
    notes: tuple[str, ...]
    output_from: Mapping[str, int]


class WarmEnded(NamedTuple):
    """The srun of a warm step has ended before its release; `text` is what srun wrote to stderr, shortened."""

    attempt: str
    code: int
    text: str = ""


class StartWarm(NamedTuple):
    """Start the srun of a warm step, beside the training step; `env` and `unset` as in `LaunchSrun`."""

    attempt: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    unset: tuple[str, ...]


class AdoptWarm(NamedTuple):
    """The warm step has become this attempt: the launcher waits for its srun from now on."""

    attempt: str
    evicted: tuple[str, ...] = ()


class EndWarm(NamedTuple):
    """Kill the srun of the warm step."""

    attempt: str


class LaunchSrun(NamedTuple):
    """Start srun, with `env` added to the launcher's environment and `unset` removed from it."""

    attempt: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    unset: tuple[str, ...]
    evicted: tuple[str, ...] = ()


class KillSrun(NamedTuple):
    """Kill srun: its step did not end."""


class ExitWith(NamedTuple):
    """Exit with this code."""

    code: int


class WaitForRequeue(NamedTuple):
    """Become the waiting shell, which runs `argv` every `pause_s`: nothing is left to supervise."""

    argv: tuple[str, ...]
    pause_s: float


class SupervisorAlive(NamedTuple):
    """The supervisor lives, and goes on."""


class SupervisorPrepares(NamedTuple):
    """The first launch comes later than usual, within this time."""

    within_s: float


class SupervisorGone(NamedTuple):
    """A supervisor has closed its end of the socket. Never sent: the launcher's reader makes this message."""

    pid: int


ToSupervisor = LauncherReady | StartedEarly | SrunStarted | SrunSignalled | SrunEnded | WarmEnded
Order = LaunchSrun | KillSrun | ExitWith | WaitForRequeue | SupervisorAlive | SupervisorPrepares
WarmOrder = StartWarm | AdoptWarm | EndWarm
ToLauncher = Order | WarmOrder


_KEYS = {"pause_s": "nap_s"}
_READERS = {"Mapping[str, str]": dict, "Mapping[str, int]": dict}
_TO_SUPERVISOR: Codec[ToSupervisor] = Codec(
    "ev",
    {
        "ready": LauncherReady,
        "early": StartedEarly,
        "started": SrunStarted,
        "signalled": SrunSignalled,
        "ended": SrunEnded,
        "warm-ended": WarmEnded,
    },
    _KEYS,
    _READERS,
)
_TO_LAUNCHER: Codec[ToLauncher] = Codec(
    "do",
    {
        "launch": LaunchSrun,
        "kill": KillSrun,
        "exit": ExitWith,
        "part": WaitForRequeue,
        "alive": SupervisorAlive,
        "prepares": SupervisorPrepares,
        "warm": StartWarm,
        "adopt-warm": AdoptWarm,
        "end-warm": EndWarm,
    },
    _KEYS,
    _READERS,
)


def encode(message: ToSupervisor | ToLauncher) -> bytes:
    """Return the line that carries a message."""
    plain = _TO_SUPERVISOR.encode(message) if isinstance(message, ToSupervisor) else _TO_LAUNCHER.encode(message)
    return json.dumps(plain).encode() + b"\n"


def to_supervisor(line: str | bytes) -> ToSupervisor:
    """Return the message that a line from the launcher carries.

    Raises:
        ValueError: the line carries no message.
    """
    return _TO_SUPERVISOR.decode(json.loads(line))


def to_launcher(line: str | bytes) -> ToLauncher:
    """Return the message that a line from the supervisor carries.

    Raises:
        ValueError: the line carries no message.
    """
    return _TO_LAUNCHER.decode(json.loads(line))
