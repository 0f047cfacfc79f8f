"""How urgent a fault of a node is for the jobs on it: the words, and a row of every table of them."""

from __future__ import annotations

from typing import NamedTuple

from slurm_robust.marks.node_findings import URGENCIES

NOW, IF_REPEATED, AT_NEXT_CHECKPOINT, NOTE = URGENCIES


class UrgencyRule(NamedTuple):
    """A row of a table.

    Attributes:
        name: One of `node_findings.URGENCIES`.
        source: Where that comes from.
    """

    name: str
    source: str
