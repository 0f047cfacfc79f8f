"""Defines how urgent a fault of a node is for the jobs on it: the words, and the row of a table of faults."""

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
