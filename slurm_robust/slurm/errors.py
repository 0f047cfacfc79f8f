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
