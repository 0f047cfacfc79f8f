"""Tells whether this process replays the training as a test, and must not change its checkpoints."""

from __future__ import annotations

import os

VARIABLE = "SROBUST_REPLAY"
REFUSED = f"{VARIABLE}=1: a replay saves no checkpoint, seals none, and records no loss"


def in_replay() -> bool:
    """Return whether this process is part of a replay on a few nodes, beside the whole training's checkpoints."""
    return os.environ.get(VARIABLE, "") == "1"
