"""Keeps the results for all lines with one key, and splits lines that were printed without a newline in between."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import pairwise

from slurm_robust.diagnose.log.page import Speaker
from slurm_robust.diagnose.log.prefix import Prefix, strip_escapes
from slurm_robust.diagnose.log.tallies import LineTally
from slurm_robust.diagnose.log.tracebacks import LineKind

_GLUED = re.compile(
    rb"(?<=[^\s:|+])(?<!Exception Group)(?<!Original)[ \t]{0,8}"
    rb"(?=\[rank\d{1,7}\]:|Traceback \(most recent call last\):|srun: error: |slurmstepd: error: )"
    rb"|(?<=\])[ \t]{1,8}(?=Traceback \(most recent call last\):)"
)
"""Matches the begin of a line that was printed after one without an end, such as a progress bar."""


@dataclass(eq=False, slots=True)
class LineShape:
    """The facts about all lines with one key.

    Attributes:
        careful: Its lines are read the slow way.
        start, end: Place of the digits that tell the speaker.
        tallies, speakers: These digits → the tally, and the speaker.
        parts: Begin and end of each line of which it consists; empty if it is a single line.
        candidate: The result of `LineFilter.of_key`.
        step: Place of the step's number in the raw line.
    """

    prefix: Prefix
    template: str = ""
    name: str = ""
    candidate: bool | None = False
    each_line: bool = False
    step: tuple[int, int] | None = None
    opens: bool = False
    timed: bool = False
    kind: LineKind | None = None
    parts: tuple[tuple[int, int], ...] = ()
    careful: bool = False
    start: int = 0
    end: int = 0
    tallies: dict[bytes, LineTally] = field(default_factory=dict)
    speakers: dict[bytes, Speaker] = field(default_factory=dict)


def glued_parts(line: bytes, prefix: Prefix) -> tuple[tuple[int, int], ...]:
    """Return begin and end of each line of which this line consists; empty if it is a single line."""
    if not _may_be_glued(line):
        return ()
    cuts = [found.end() for found in _GLUED.finditer(line, prefix.text_at + 1)]
    return tuple(pairwise([0, *cuts, len(line)])) if cuts else ()


def _may_be_glued(line: bytes) -> bool:
    """Return whether a line may consist of several: a quick check before the pattern."""
    return b"Traceback (most" in line or b"[rank" in line or b"srun: error: " in line or b"slurmstepd: error: " in line


def decoded(line: bytes, prefix: Prefix) -> str:
    """Return the text of a line, without labels and colours."""
    text = line[prefix.text_at :]
    if b"\x1b" in text or not text.isascii() or not text.decode("ascii").isprintable():
        text = strip_escapes(text)
    return text.decode("utf-8", "replace").rstrip()
