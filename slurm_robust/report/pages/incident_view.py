"""Defines what an incident's own page shows, as plain values; texts are not escaped here."""

from __future__ import annotations

import enum
from collections.abc import Set
from dataclasses import dataclass, field

from slurm_robust.localize.evidence import Capture
from slurm_robust.report.pages.view import BigNumber, FigureTable


class RankActivity(str, enum.Enum):
    """The activity of a rank in the last capture."""

    WAITS = "waits"
    """The rank stands in a collective, or at a place where it waits for one."""
    ELSEWHERE = "elsewhere"
    """The rank stands somewhere else."""
    HELD = "held"
    """Stopped, held by a debugger, in uninterruptible sleep, or a zombie."""
    ENDED = "ended"
    MISSING = "missing"
    """The activity is unknown: the rank's node did not answer, or its stack could not be read."""


@dataclass(frozen=True)
class IncidentStage:
    """The stage of an incident between two of its stamps."""

    label: str
    begin_s: float
    end_s: float


@dataclass(frozen=True)
class RankCell:
    """One rank, or several ranks in one cell: then `state` is the worst of their states.

    Attributes:
        label: The text of a cell that is large enough.
        hint: Ranks, node, state, as a sentence.
        suspect: Whether the verdict names it.
    """

    label: str
    state: RankActivity
    suspect: bool
    hint: str


@dataclass(frozen=True)
class RankRow:
    """Cells that belong together, in groups that stand a little apart."""

    label: str
    groups: tuple[tuple[RankCell, ...], ...]


@dataclass(frozen=True)
class LinkedFile:
    """A file of the incident's folder: its name, its place relative to the page, and its size."""

    name: str
    href: str
    size_bytes: int


@dataclass(frozen=True)
class IncidentView:
    """The content of the page of one incident.

    Attributes:
        headline: The verdict's sentence.
        facts: Name and value, in the order in which they are shown.
        stages: Each with the seconds between its stamps.
        capture: The last capture, for the flame graph; None if no stack is known.
        suspects: Ranks that the verdict names.
        rows_told: The meaning of rows and groups of the grid.
        plan: Name and value of each line of the plan.
    """

    id: str
    job: str
    cluster: str
    opened_at_s: float
    made_at_s: float
    headline: str
    facts: tuple[tuple[str, str], ...]
    numbers: tuple[BigNumber, ...] = ()
    stages: tuple[IncidentStage, ...] = ()
    capture: Capture | None = None
    suspects: Set[int] = field(default_factory=frozenset)
    rows: tuple[RankRow, ...] = ()
    rows_told: str = ""
    plan: tuple[tuple[str, str], ...] = ()
    cause: tuple[tuple[str, str], ...] = ()
    signals: FigureTable | None = None
    tests: tuple[FigureTable, ...] = ()
    actions: FigureTable | None = None
    story: FigureTable | None = None
    files: tuple[LinkedFile, ...] = ()
    folder: str = ""
    doubts: tuple[str, ...] = ()
    offset_s: int = 0
