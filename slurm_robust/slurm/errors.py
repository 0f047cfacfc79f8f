"""What can go wrong between us and Slurm. None of these is ever a verdict on a node or a job."""

from __future__ import annotations


class SlurmError(Exception):
    """A call to Slurm failed; `text` carries Slurm's own words where it said any."""

    def __init__(self, what: str, text: str = "") -> None:
        self.what = what
        self.text = text.strip()
        super().__init__(f"{what}: {self.text}" if self.text else what)


class SlurmTimeoutError(SlurmError):
    """The call did not come back before its deadline."""


class SlurmMissingError(SlurmError):
    """The command or library is not there."""


class SlurmUnavailableError(SlurmError):
    """slurmctld cannot be reached."""


class SlurmRefusedError(SlurmError):
    """Slurm understood and said no: permission, a bad state, an invalid value."""


class SlurmNotFoundError(SlurmRefusedError):
    """There is no such job, node or reservation."""


class SlurmParseError(SlurmError):
    """Slurm answered in words that this code does not know."""


class SlurmUnconfirmedError(SlurmError):
    """The call returned, but Slurm, read again until the deadline, did not show what it was asked to do."""


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
    """The error that Slurm's words mean; words not known here are a refusal, and reach the caller as they are."""
    words = text.lower()
    if any(known in words for known in _UNAVAILABLE):
        return SlurmUnavailableError(what, text)
    if any(known in words for known in _NOT_FOUND):
        return SlurmNotFoundError(what, text)
    return SlurmRefusedError(what, text)
