"""Reads values that came over the channel, so that they are bounded, finite and printable.

Slurm may cut a line and mix it with another line, and if the result is still JSON, it can have any value. Each reader
raises an error for any other value, or replaces it.
"""

from __future__ import annotations

import math
from typing import Any

from slurm_robust.marks import node_findings
from slurm_robust.marks.node_findings import NodeFinding

_MOST = 2**63
_MOST_S = 1e11
"""Seconds; 3,000 years, which a calendar can still show."""


def whole(value: Any) -> int:
    """Return a whole number.

    Raises:
        ValueError, TypeError, OverflowError: the value is not a whole number, or too large.
    """
    number = int(value)
    if not -_MOST <= number < _MOST:
        raise ValueError("too large")
    return number


def seconds(value: Any) -> float:
    """Return a time or a duration, in seconds. Raises as `whole`."""
    number = float(value)
    if not abs(number) <= _MOST_S:  # NaN too
        raise ValueError("no time")
    return number


def limit_s(value: Any) -> float | None:
    """Return a limit in seconds, which may be infinite; None for none. Raises as `whole`."""
    return value if value is None or value == math.inf else seconds(value)


def measure(value: Any) -> float | str | None:
    """Return a loss or a norm: a finite number, the text `nan` or `inf`, or None. Raises as `whole`."""
    if value is None:
        return None
    number = float(value)
    return number if math.isfinite(number) else "nan" if math.isnan(number) else "inf"


def text(value: Any) -> str:
    """Return a text of one line; characters that cannot be shown become question marks."""
    return node_findings.printable(str(value))


def lines(values: Any) -> tuple[str, ...]:
    """Return texts that may have several lines; characters that a file cannot hold are replaced."""
    return tuple(str(value).encode("utf-8", "replace").decode("utf-8") for value in values)


def findings(entries: Any) -> tuple[NodeFinding, ...]:
    """Return the findings, checked as if they came from the file of a node's findings.

    Raises:
        ValueError: one of the entries is not a finding.
    """
    found = [node_findings.believable(dict(zip(NodeFinding._fields, entry))) for entry in entries]
    if None in found:
        raise ValueError("no finding")
    return tuple(finding for finding in found if finding is not None)
