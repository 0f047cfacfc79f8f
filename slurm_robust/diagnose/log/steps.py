"""Finds the lines that count the training's steps, which show what was printed while steps went on."""

from __future__ import annotations

import re

_WORDS = (b"iteration", b"step", b"iter", b"batch", b"epoch")
"""Words before the number in progress lines of Megatron-LM, Lightning, torchtitan, DeepSpeed, Hugging Face."""
_AFTER = re.compile(r"['\"]?[\s:=#\[(]{1,4}(?P<step>\d+)\b(?!\.\d|\s*m?s\b)")
"""No time: `per step: 1.93 s`."""
_BAR = re.compile(r"\|\s*(?P<step>\d+)/\d+\s*\[")
"""Of tqdm."""

_OFTEN = 5
"""A line that was printed in at least so many different steps is routine..."""
_EARLY = 0.5
"""...if it began within this first part of the steps: a line that began later is a change."""


def step_span(line: bytes, own: re.Pattern[str] | None = None) -> tuple[int, int] | None:
    """Return the place of a line's step number; None if there is none. `own` is the site's pattern, with `step`.

    A number that is too long for any counter of steps does not count.
    """
    text = line.decode("latin-1") if own is not None else ""  # a character a byte, so that places are the same
    found = own.search(text) if own is not None else _usual(line)
    span = found.span("step") if found is not None and "step" in found.re.groupindex else (0, 0)
    return span if 0 < span[1] - span[0] <= 12 and line[span[0] : span[1]].isdigit() else None


def _usual(line: bytes) -> re.Match[str] | None:
    """Return the clearest of the usual shapes: a word that counts, or a bar."""
    lower = line.lower()
    for word in _WORDS:
        at = lower.find(word)
        while at >= 0:
            if at == 0 or not lower[at - 1 : at].isalnum():
                found = _AFTER.match(line.decode("latin-1"), at + len(word))
                if found is not None:
                    return found
            at = lower.find(word, at + 1)
    return _BAR.search(line.decode("latin-1")) if b"|" in line else None


def is_routine(ticks: int, first_tick: int, begin: int, end: int) -> bool:
    """Return whether healthy steps print a line.

    Args:
        ticks: In how many different steps the line was printed.
        first_tick: The first of these steps.
        begin: The first step of the file.
        end: The last step of the file.
    """
    return ticks >= _OFTEN and first_tick - begin <= _EARLY * (end - begin)
