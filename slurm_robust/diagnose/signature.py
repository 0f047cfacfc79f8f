"""When two failures are the same: the same exception and message, at the same place of the program, of one category.

The class of an exception alone is no signature: two `RuntimeError`s have nothing in common.
"""

from __future__ import annotations

import re

from slurm_robust.diagnose.findings import LogFinding
from slurm_robust.diagnose.lines import unlabelled

MAX_CHARS = 160
_VARIABLE = (
    (re.compile(r"0x[0-9a-f]+", re.IGNORECASE), "#"),
    (re.compile(r"(?<![\w.])/[^\s:'\",)\]]+"), "/…"),
    (re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}\b"), "#"),
    (re.compile(r"\b(?=[a-f]*\d)[0-9a-f]{8,}\b", re.IGNORECASE), "#"),
    (re.compile(r"\d+"), "#"),
)


def template(line: str) -> str:
    """What a message has in common with the same one elsewhere: no labels, numbers, addresses or paths."""
    text = unlabelled(line)
    for pattern, instead in _VARIABLE:
        text = pattern.sub(instead, text)
    return " ".join(text.split())[:MAX_CHARS]


def signature(finding: LogFinding) -> str:
    """The same for the same failure on another rank, node or attempt."""
    where = f" at {finding.place}" if finding.place else ""
    return f"{finding.category.name}: {template(finding.text)}{where}"
