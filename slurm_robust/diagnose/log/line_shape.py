"""Holds what is known of all lines with one key, and how many lines, glued together, are one line of a file."""

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
"""Where another line begins that was written after one without an end, such as a progress bar."""


@dataclass(eq=False, slots=True)
class LineShape:
    """What is known of all lines with one key.

    Attributes:
        careful: A line of it takes the long way.
        start, end: Where the digits stand that tell the speaker.
        tallies, speakers: Those digits → the tally, and who they are.
        parts: Where the lines begin and end of which it consists; empty if it is one.
        candidate: As `LineFilter.of_key` said.
        step: Where the step's number stands, in the raw line.
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
    """Where the lines begin and end of which this one consists; empty if it is one."""
    if not _may_be_glued(line):
        return ()
    cuts = [found.end() for found in _GLUED.finditer(line, prefix.text_at + 1)]
    return tuple(pairwise([0, *cuts, len(line)])) if cuts else ()


def _may_be_glued(line: bytes) -> bool:
    """A quick look before the pattern."""
    return b"Traceback (most" in line or b"[rank" in line or b"srun: error: " in line or b"slurmstepd: error: " in line


def decoded(line: bytes, prefix: Prefix) -> str:
    """The text of a line, without labels and colours."""
    text = line[prefix.text_at :]
    if b"\x1b" in text or not text.isascii() or not text.decode("ascii").isprintable():
        text = strip_escapes(text)
    return text.decode("utf-8", "replace").rstrip()
