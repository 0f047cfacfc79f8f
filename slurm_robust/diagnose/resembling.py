"""Finds past incidents that were the same failure, or much like it: by signature, else by category and words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from slurm_robust.diagnose.signature import masked, template

MOST = 5
_ALIKE = 0.6
"""Share of words that two messages of one category have in common."""
_LEAST_CHARS = 16
"""A shorter message may stand in any text by chance."""
_WORD = re.compile(r"[A-Za-z_][\w.]{2,}")
SAME = "the same signature"
ALIKE = "the same category and much the same words"
TEXT = "its text has the same message"


@dataclass(frozen=True)
class PastIncident:
    """An incident as it is compared and shown.

    Attributes:
        incident: Its id.
        at_s: When it was opened, seconds since the epoch.
        nodes: The suspects, or the nodes that were left.
        done: What was decided, in words; empty if nothing was.
        outcome: How it ended, in words; empty while it is open.
        helped: Whether training came further after what was done; None if nothing was done, or nobody knows.
        cause: Its diagnosis: `category`, `blame`, `signature`, `line`, `place`; empty if it was not kept.
        text: What else says why it failed: the verdict, notes.
    """

    incident: str
    job: str
    at_s: float
    nodes: tuple[str, ...] = ()
    done: str = ""
    outcome: str = ""
    helped: bool | None = None
    cause: Mapping[str, str] = field(default_factory=dict)
    text: str = ""


@dataclass(frozen=True)
class Resemblance:
    """A past incident, and in what it resembles the failure."""

    past: PastIncident
    why: str


def resembling(
    signature: str, category: str, line: str, past: Iterable[PastIncident], most: int = MOST
) -> list[Resemblance]:
    """Past incidents that resemble a failure: those of the same signature first, then the newest.

    An incident without a kept cause is compared by its text. A failure without a signature resembles nothing.

    Args:
        signature: Of the failure's root.
        category: Its name.
        line: The root line.
        past: Each incident may be given more than once (by the journal, by its folder); the first one counts.
        most: No more than so many.
    """
    if not signature:
        return []
    message = template(line)
    found: dict[str, Resemblance] = {}
    for one in past:
        why = _why(signature, category, message, one)
        if why:
            found.setdefault(one.incident, Resemblance(one, why))
    return sorted(found.values(), key=lambda r: (r.why != SAME, -r.past.at_s))[:most]


def _why(signature: str, category: str, message: str, past: PastIncident) -> str:
    if past.cause.get("signature"):
        if past.cause["signature"] == signature:
            return SAME
        same_kind = past.cause.get("category") == category
        other = template(past.cause.get("line") or past.cause["signature"])
        return ALIKE if same_kind and _alike(message, other) else ""
    same_text = len(message) >= _LEAST_CHARS and message in masked(past.text)
    return TEXT if same_text else ""


def _alike(one: str, other: str) -> bool:
    first, second = set(_WORD.findall(one.lower())), set(_WORD.findall(other.lower()))
    return bool(first and second) and len(first & second) / len(first | second) >= _ALIKE
