"""What the doctor says about one thing."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Severity(str, enum.Enum):
    """How much it matters."""

    WRONG = "wrong"
    ADVICE = "advice"
    OK = "ok"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Advice:
    """One finding.

    Attributes:
        level: `wrong`: something of ours does not work so. `advice`: it works less well. `unknown`: could not look.
        about: The key of slurm.conf, or the file.
        sentence: What holds and what follows from it.
        fix: The line for slurm.conf, or the command to type; empty where nothing is to be done.
    """

    level: Severity
    about: str
    sentence: str
    fix: str = ""
