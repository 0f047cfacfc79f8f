"""Builds, cuts and cleans text, and says how long something took.

Standard library only, and no other module of the package.

A reason begins with one short sentence: which node, which fault, on what evidence. Further knowledge stands in a field
of its own (`Suspect.detail`, `Verdict.detail`), and is shown if there is room. Text is cut only when it is written into
a field with a limit, by `shortened`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

ELLIPSIS = "…"
NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")
"""The shape of a node's name, in text from outside."""
_MOST_TOLD = 2
_END = re.compile(r"\.\s+(?=[A-Z])")


def printable(text: str, bad: str = "?", keep: str = "") -> str:
    """Return text from outside with `bad` for each character that acts on a terminal or page, or is not seen.

    These are control characters (C1, too), marks that turn the direction of writing, separators of lines, and halves of
    surrogate pairs. Characters in `keep` stay.
    """
    return text if text.isprintable() else "".join(c if c.isprintable() or c in keep else bad for c in text)


def shortened(text: str, limit_chars: int) -> str:
    """Return the text if it fits; else its beginning, up to the last whole word that fits, and an ellipsis.

    A single word that is longer than the limit is cut in its middle.
    """
    if len(text) <= limit_chars:
        return text
    if limit_chars <= len(ELLIPSIS):
        return ELLIPSIS[:limit_chars]
    room = limit_chars - len(ELLIPSIS)
    kept = text[:room]
    if not text[room].isspace() and (blank := max(kept.rfind(" "), kept.rfind("\n"))) > 0:
        kept = kept[:blank]
    return kept.rstrip(" \n,;:.(") + ELLIPSIS


def first_sentence(text: str) -> str:
    """Return the short sentence that a reason begins with, without its full stop; the whole text if it is one."""
    return _END.split(text, maxsplit=1)[0]


def joined(sentences: Iterable[str], *, most: int = _MOST_TOLD) -> str:
    """Sentences of one kind (a suspect each, say) as one; of many the first ones, and how many there are more."""
    told = list(sentences)
    if len(told) <= most:
        return "; ".join(told)
    return f"{'; '.join(told[:most])}; and {len(told) - most} more"


def duration(seconds: float | None) -> str:
    """Return a duration as `0.8 s`, `42 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`; empty for None."""
    if seconds is None:
        return ""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, big, small, part in ((86400, "d", "h", 3600), (3600, "h", "min", 60), (60, "min", "s", 1)):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size} {big}" + (f" {rest} {small}" if rest else "")
    return f"{whole} s"
