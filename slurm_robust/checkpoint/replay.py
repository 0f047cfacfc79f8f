"""Tells whether this process replays the training as a test, and must not change its checkpoints."""

from __future__ import annotations

import os

VARIABLE = "SROBUST_REPLAY"
REFUSED = f"{VARIABLE}=1: a replay saves no checkpoint, seals none, and records no loss"


def in_replay() -> bool:
    """Whether this process was started for a replay of a few nodes, beside the checkpoints of the whole training."""
    return os.environ.get(VARIABLE, "") == "1"
