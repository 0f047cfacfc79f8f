"""Says when two failures are equal: by exception and message, place of the program, and category.

The class of an exception alone is not a signature: two `RuntimeError`s need not have anything in common. Failures that
a device, a machine or an outage causes may show at any place of the program, so their place is left out.
"""

from __future__ import annotations

import re

from slurm_robust.diagnose.findings import LogFinding
from slurm_robust.diagnose.lines import unlabelled, without_values
from slurm_robust.diagnose.taxonomy import Blame

MAX_CHARS = 160
_IP_ADDRESS = re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}\b")


def template(line: str) -> str:
    """Return a message without labels, numbers, addresses and paths, so that equal messages become equal texts."""
    return masked(unlabelled(line))[:MAX_CHARS]


def masked(text: str) -> str:
    """Return a text of any length, with its numbers, addresses and paths replaced as in a template."""
    return without_values(_IP_ADDRESS.sub("#", text))


def signature(finding: LogFinding) -> str:
    """Return a text that is equal for equal failures on other ranks, nodes or attempts."""
    own = finding.blame is Blame.PROGRAM or finding.rule.vague  # a line that says little is known by its place
    where = f" at {finding.place}" if finding.place and own else ""
    return f"{finding.category.name}: {template(finding.text)}{where}"
