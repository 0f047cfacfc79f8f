"""What many tests need: waiting for something with a deadline, and whether Slurm is here."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(predicate: Callable[[], T], timeout_s: float, what: str, *, poll_s: float = 0.05) -> T:
    """Poll until `predicate` gives something true, and return that.

    Raises:
        AssertionError: it did not in `timeout_s`; says what was awaited and what was seen last.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        seen = predicate()
        if seen:
            return seen
        if time.monotonic() > deadline_s:
            raise AssertionError(f"not in {timeout_s:g} s: {what} (last seen: {seen!r})")
        time.sleep(poll_s)


def slurm_required() -> bool:
    """True where a missing Slurm is a failure and no reason to skip."""
    return bool(os.environ.get("CI") or os.environ.get("SROBUST_REQUIRE_SLURM"))
