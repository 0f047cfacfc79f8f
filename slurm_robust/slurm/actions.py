"""Do, then look: an action is done when Slurm, read again, shows it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from slurm_robust.slurm.errors import SlurmParseError, SlurmTimeoutError, SlurmUnavailableError, SlurmUnconfirmedError

T = TypeVar("T")


def confirmed(
    what: str,
    do: Callable[[], object],
    look: Callable[[], T | None],
    *,
    timeout_s: float = 10.0,
    poll_s: float = 0.1,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Do something unless Slurm shows it already, and return what Slurm shows once it does.

    Args:
        what: Names the action in errors.
        do: Acts; its errors pass through.
        look: Reads Slurm; something true once the action shows, None or something false before.
        timeout_s: From now to the last look.
        poll_s: Between two looks.
        clock: Seconds, monotonic.
        sleep: Waits that many seconds.

    Raises:
        SlurmUnconfirmedError: it did not show in time; carries the last error of reading, if that failed.
        SlurmError: `do` failed.
    """
    deadline = clock() + timeout_s
    trouble = ""

    def glance() -> T | None:
        nonlocal trouble
        try:
            seen = look()
        except (SlurmUnavailableError, SlurmTimeoutError, SlurmParseError) as error:
            # Not seeing is not the same as not there: look again until the deadline.
            trouble = str(error)
            return None
        trouble = ""
        return seen

    if seen := glance():
        return seen
    do()
    while True:
        if seen := glance():
            return seen
        if clock() >= deadline:
            raise SlurmUnconfirmedError(f"{what}: asked, but Slurm did not show it within {timeout_s:g} s", trouble)
        sleep(min(poll_s, max(0.0, deadline - clock())))
