"""Which lines count the training's steps, so that it is known which lines were printed while steps went on."""

from __future__ import annotations

import re

_COUNT = r"(?P<step>\d+)\b(?!\.\d|\s*m?s\b)"
"""No time: `per step: 1.93 s`."""
_PATTERNS = tuple(
    re.compile(p)
    for p in (
        r"\biteration\s+(?P<step>\d+)\s*/\s*\d+",  # Megatron-LM
        r"\b(?:global_)?step[\s:=]+" + _COUNT,  # Lightning, torchtitan, DeepSpeed, own loops
        r"\b[Ss]tep\s+(?P<step>\d+)\s*/\s*\d+",
        r"['\"]global_step['\"]\s*:\s*(?P<step>\d+)",  # Hugging Face
        r"\b[Ii]ter(?:ation)?[\s:=]+" + _COUNT,
        r"\|\s*(?P<step>\d+)/\d+\s*\[",  # tqdm bars
        r"\b[Ss]tep[\s:=#]+" + _COUNT,
        r"\b(?:[Bb]atch|[Ee]poch)[\s:=#\[(]+" + _COUNT,
    )
)
"""Shapes of progress lines, the clearest first."""
_MAYBE = (b"step", b"Step", b"iter", b"Iter", b"/", b"atch", b"poch")

_OFTEN = 5
"""What was printed in so many different steps is routine..."""
_EARLY = 0.5
"""...if it began within this part of the steps: what began later is a change."""


def step_span(line: bytes, own: re.Pattern[str] | None = None) -> tuple[int, int] | None:
    """Where a line's step number stands; None for lines that count nothing. `own` is the site's pattern, with `step`.

    The digits of a number that is too long for any counter of steps are no number.
    """
    if own is None and not any(word in line for word in _MAYBE):
        return None
    text = line.decode("latin-1")  # a character a byte, so that places are the same
    for pattern in (own,) if own is not None else _PATTERNS:
        found = pattern.search(text)
        if found is not None:
            span = found.span("step") if "step" in pattern.groupindex else (0, 0)
            return span if 0 < span[1] - span[0] <= 12 and line[span[0] : span[1]].isdigit() else None
    return None


def is_routine(ticks: int, first_tick: int, begin: int, end: int) -> bool:
    """Whether healthy steps print a line.

    Args:
        ticks: In how many different steps it was printed.
        first_tick: The first of them.
        begin: The first step of the file.
        end: Its last one.
    """
    return ticks >= _OFTEN and first_tick - begin <= _EARLY * (end - begin)
