"""Finds past incidents with an equal or similar failure: by signature, else by category and words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from slurm_robust.diagnose.signature import masked, template

MOST = 5
_ALIKE = 0.6
"""The share of words that two messages of one category must have in common to be alike."""
_LEAST_CHARS = 16
"""A shorter message may stand in any text by chance."""
_WORD = re.compile(r"[A-Za-z_][\w.]{2,}")
SAME = "the same signature"
ALIKE = "the same category and much the same words"
TEXT = "its text has the same message"


@dataclass(frozen=True)
class PastIncident:
    """An incident in the form in which it is compared and shown.

    Attributes:
        incident: The id of the incident.
        at_s: When it was opened, seconds since the epoch.
        nodes: The suspects, or the nodes that were left.
        done: What was decided, in words; empty if nothing was decided.
        outcome: How the incident ended, in words; empty while it is open.
        helped: Whether training came further after the action; None if there was no action, or if not known.
        cause: Its diagnosis: `category`, `blame`, `signature`, `line`, `place`; empty if it was not kept.
        text: Other texts on why it failed: the verdict, notes.
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
    """A past incident, and how it resembles the failure."""

    past: PastIncident
    why: str


def resembling(
    signature: str, category: str, line: str, past: Iterable[PastIncident], most: int = MOST
) -> list[Resemblance]:
    """Return past incidents that resemble a failure: those with its signature first, then the newest.

    An incident without a kept cause is compared by its text. For a failure without a signature the result is empty.

    Args:
        signature: The signature of the failure's root.
        category: The name of its category.
        line: The root line.
        past: The past incidents; of an incident that comes twice (from the journal, from its folder) the first counts.
        most: The most incidents to return.
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
