"""Defines the errors of a call to Slurm. An error does not mean that a node or a job is at fault."""

from __future__ import annotations


class SlurmError(Exception):
    """A call to Slurm failed; `text` is Slurm's own message, if it gave one."""

    def __init__(self, what: str, text: str = "") -> None:
        self.what = what
        self.text = text.strip()
        super().__init__(f"{what}: {self.text}" if self.text else what)


class SlurmTimeoutError(SlurmError):
    """The call did not return before its deadline."""


class SlurmMissingError(SlurmError):
    """The command or library does not exist."""


class SlurmUnavailableError(SlurmError):
    """slurmctld cannot be reached."""


class SlurmRefusedError(SlurmError):
    """Slurm refused: permission, a bad state, an invalid value."""


class SlurmNotFoundError(SlurmRefusedError):
    """There is no such job, node or reservation in Slurm."""


class SlurmParseError(SlurmError):
    """Slurm gave an answer that this code cannot parse."""


_NOT_FOUND = (
    "invalid job id",
    "invalid node name",
    "requested reservation is invalid",
    "no reservation named",
    "not found",
)
_UNAVAILABLE = (
    "unable to contact slurm controller",
    "unable to establish control",
    "unable to establish configuration source",
    "could not establish a configuration source",
    "slurmctld_communications",
    "communication connection failure",
    "communication send failure",
    "communication receive failure",
    "connection refused",
    "connection timed out",
    "connection reset",
    "no route to host",
    "socket timed out",
    "zero bytes were transmitted",
    "unexpected message received",
    "insane message length",
    "controller in standby mode",
    "authentication error",
    "munge",
    "unable to process configuration file",
    "slurm.conf",
    "resource temporarily unavailable",
    "temporarily unable to accept",
)


def from_text(what: str, text: str) -> SlurmError:
    """Return the error that Slurm's message means; an unknown message is a refusal, and is passed on as it is."""
    words = text.lower()
    if any(known in words for known in _UNAVAILABLE):
        return SlurmUnavailableError(what, text)
    if any(known in words for known in _NOT_FOUND):
        return SlurmNotFoundError(what, text)
    return SlurmRefusedError(what, text)
