"""All ranks wait for their buffers together; meanwhile each replaces its own persister if that has died."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.saving.rank.buffers import Buffers
from slurm_robust.checkpoint.saving.rank.save_plan import RankGroup

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.002, 0.05


def wait(
    buffers: Buffers,
    ranks: RankGroup,
    receive: Callable[[float], None],
    until_s: float = math.inf,
    *,
    written: bool = False,
) -> str:
    """Wait until no rank's next buffer is in use, and all newest copies are kept on other nodes; all ranks call it.

    Args:
        buffers: This rank's.
        ranks: All ranks that save together.
        receive: Reads the persister's notifications, and waits at most so long for the first.
        until_s: CLOCK_MONOTONIC; the first rank to reach it ends the wait for all.
        written: Wait until all copies are written, too.

    Returns:
        Why this rank's buffers cannot be waited for; empty if they can.
    """

    def pending() -> bool:
        return bool(buffers.image.due()) or not buffers.safe() if written else buffers.busy()

    waits, failure, pause_s = pending(), "", _FIRST_PAUSE_S
    while True:
        waiting, late = ranks.maximum(int(waits), int(time.monotonic() > until_s))
        if late or not waiting:
            return failure
        receive(pause_s)
        try:
            buffers.ensure_alive()  # even if only other ranks wait: they may be sending to this node
            waits, failure = pending(), ""
        except CheckpointError as error:
            waits, failure = False, str(error)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
