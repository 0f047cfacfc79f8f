"""One finding of the doctor."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Severity(str, enum.Enum):
    """How severe a finding is."""

    WRONG = "wrong"
    ADVICE = "advice"
    OK = "ok"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Advice:
    """One finding.

    Attributes:
        level: `wrong`: something of ours cannot work. `advice`: it works less well. `unknown`: the setting could not be
            read.
        about: The key of slurm.conf, or the file.
        sentence: The fact and its consequence.
        fix: The line for slurm.conf, or the command to type; empty if nothing needs to be done.
    """

    level: Severity
    about: str
    sentence: str
    fix: str = ""
