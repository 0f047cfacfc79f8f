"""Says when two failures are the same: same exception and message, same place of the program, same category.

The class of an exception alone is no signature: two `RuntimeError`s have nothing in common. What a device, a machine or
an outage causes shows wherever the program happens to be: there the place is left out.
"""

from __future__ import annotations

import re

from slurm_robust.diagnose.findings import LogFinding
from slurm_robust.diagnose.lines import unlabelled, without_values
from slurm_robust.diagnose.taxonomy import Blame

MAX_CHARS = 160
_IP_ADDRESS = re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}\b")


def template(line: str) -> str:
    """What a message has in common with the same one elsewhere: no labels, numbers, addresses or paths."""
    return masked(unlabelled(line))[:MAX_CHARS]


def masked(text: str) -> str:
    """A text of any length, with its numbers, addresses and paths replaced as in a template."""
    return without_values(_IP_ADDRESS.sub("#", text))


def signature(finding: LogFinding) -> str:
    """The same for the same failure on another rank, node or attempt."""
    own = finding.blame is Blame.PROGRAM or finding.rule.vague  # a line that says little is known by its place
    where = f" at {finding.place}" if finding.place and own else ""
    return f"{finding.category.name}: {template(finding.text)}{where}"
