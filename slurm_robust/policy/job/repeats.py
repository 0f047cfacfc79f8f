"""Compares a failure with the earlier ones of its training: the same again, alike, or unrelated. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from slurm_robust.core.model import Failure, FailureCause

_VARIED = ("cuda_error",)
"""Categories for which one broken device may give another message each time."""
_UNCOUNTED = (FailureCause.SHARED, FailureCause.SLURM)
"""Attempts with these causes do not count as without a new step: an outage is waited for, or nothing was started."""


def same(one: Failure, other: Failure) -> bool:
    """Return whether both failures have one signature: the same message at the same place."""
    return one.signature == other.signature


def alike(one: Failure, other: Failure) -> bool:
    """Return whether one broken device could have caused both failures."""
    return same(one, other) or (one.category == other.category and one.category in _VARIED)


def unrelated(one: Failure, other: Failure) -> bool:
    """Return whether both failures are known by their messages, and these differ; or both are faults of other nodes."""
    if one.cause is other.cause is FailureCause.NODE:
        return not set(one.nodes) & set(other.nodes)
    shorter, longer = sorted((one.signature, other.signature), key=len)
    # If several ranks print at once, a message may be read without its place.
    alike_here = alike(one, other) or longer.startswith(f"{shorter} at ")
    return bool(one.category and other.category) and not alike_here


def unrelated_before(failure: Failure | None, earlier: Iterable[Failure]) -> int:
    """Return how many of the counted earlier failures have nothing to do with this one."""
    if failure is None:
        return 0
    return sum(unrelated(failure, other) for other in earlier if other.cause not in _UNCOUNTED)


def always_on(node: str, failure: Failure, earlier: Iterable[Failure]) -> bool:
    """Return whether this failure has come before, and each time on this node."""
    known = [other for other in earlier if alike(failure, other) and other.nodes]
    return bool(known) and all(node in other.nodes for other in known)


def elsewhere(failure: Failure, earlier: Iterable[Failure]) -> Failure | None:
    """Return the first earlier failure that is the same, but only on other nodes; None if there is none."""
    here = set(failure.nodes)
    return next(
        (other for other in earlier if same(failure, other) and other.nodes and not here & set(other.nodes)), None
    )
