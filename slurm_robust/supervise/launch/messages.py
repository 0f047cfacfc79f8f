"""The messages between launcher and supervisor, over a socket pair: one JSON object a line.

`do` names what the supervisor asks for, `ev` what the launcher reports. Both ends use these classes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from slurm_robust.supervise.agent.codec import Codec


class LauncherReady(NamedTuple):
    """No srun was started so far."""


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
    """The supervisor lives."""


class SupervisorGone(NamedTuple):
    """A supervisor has closed its end of the socket. Never sent: the launcher's reader reports it so."""

    pid: int


ToSupervisor = LauncherReady | SrunStarted | SrunEnded
ToLauncher = LaunchSrun | KillSrun | ExitWith | WaitForRequeue | SupervisorAlive


def _texts(values: Any) -> tuple[str, ...]:
    return tuple(map(str, values))


_FIELDS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "attempt": ("attempt", str),
    "pid": ("pid", int),
    "code": ("code", int),
    "argv": ("argv", _texts),
    "env": ("env", dict),
    "unset": ("unset", _texts),
    "evicted": ("evicted", _texts),
    "pause_s": ("nap_s", float),
}
_TO_SUPERVISOR = Codec("ev", {"ready": LauncherReady, "started": SrunStarted, "ended": SrunEnded}, _FIELDS)
_TO_LAUNCHER = Codec(
    "do",
    {"launch": LaunchSrun, "kill": KillSrun, "exit": ExitWith, "part": WaitForRequeue, "alive": SupervisorAlive},
    _FIELDS,
)


def encode(message: ToSupervisor | ToLauncher) -> bytes:
    """The line that carries a message."""
    codec = _TO_SUPERVISOR if isinstance(message, ToSupervisor) else _TO_LAUNCHER
    return json.dumps(codec.encode(message)).encode() + b"\n"


def to_supervisor(line: str | bytes) -> ToSupervisor:
    """The message that a line from the launcher carries.

    Raises:
        ValueError: it carries none.
    """
    message: ToSupervisor = _TO_SUPERVISOR.decode(json.loads(line))
    return message


def to_launcher(line: str | bytes) -> ToLauncher:
    """The message that a line from the supervisor carries.

    Raises:
        ValueError: it carries none.
    """
    message: ToLauncher = _TO_LAUNCHER.decode(json.loads(line))
    return message
