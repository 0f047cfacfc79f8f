"""Says whether plans are carried out. A module of its own, as a launch and a prolog need no other noun of `model`."""

from __future__ import annotations

import enum


class Mode(str, enum.Enum):
    """Whether plans are carried out."""

    OBSERVE = "observe"
    ACT = "act"
