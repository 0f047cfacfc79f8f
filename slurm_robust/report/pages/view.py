"""Defines the content of a report as plain values: texts, raw numbers with their units, and the data of each plot.

Texts are not escaped here. Times are seconds since the epoch (UTC). A number that is not known is None, never 0.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

Cell = str | float | int | None


class Unit(str, enum.Enum):
    """The unit of a number in a table; a text has none."""

    TEXT = "text"
    COUNT = "count"
    NUMBER = "number"
    SHARE = "share"
    SECONDS = "seconds"
    HOURS = "hours"
    GPU_HOURS = "gpu_hours"
    NODE_HOURS = "node_hours"
    AT = "at"


@dataclass(frozen=True)
class TableColumn:
    """A column: its name for tools, its title for people."""

    key: str
    title: str
    unit: Unit = Unit.TEXT


@dataclass(frozen=True)
class FigureTable:
    """A table of raw values.

    Attributes:
        left_out: A sentence about rows that are not in it; empty if it has all.
    """

    caption: str
    columns: tuple[TableColumn, ...]
    rows: tuple[tuple[Cell, ...], ...]
    left_out: str = ""


@dataclass(frozen=True)
class BigNumber:
    """One of the big numbers at the top of the page.

    Attributes:
        value: The number; None if it is not known: `note` then says why.
    """

    key: str
    label: str
    value: float | None
    unit: Unit
    note: str = ""


@dataclass(frozen=True)
class PlotSeries:
    """The meaning of a colour."""

    key: str
    label: str


@dataclass(frozen=True)
class TimelineBar:
    """A stretch of a training: `waiting`, `running` or `lost`. It is open if it still lasted when the page was made."""

    begin_s: float
    end_s: float
    state: str
    open: bool = False


@dataclass(frozen=True)
class TimelineMark:
    """An incident on a timeline: `back`, `ended`, `watched` or `open`."""

    at_s: float
    outcome: str
    text: str


@dataclass(frozen=True)
class TimelineRow:
    """A training."""

    label: str
    detail: str
    bars: tuple[TimelineBar, ...]
    marks: tuple[TimelineMark, ...] = ()


@dataclass(frozen=True)
class TimelinePlot:
    """Trainings one below the other."""

    from_s: float
    to_s: float
    rows: tuple[TimelineRow, ...]


@dataclass(frozen=True)
class ShareBin:
    """A stretch of time with each series' share of it, in the order of the series; no shares where nothing ran."""

    begin_s: float
    end_s: float
    shares: tuple[float, ...] = ()


@dataclass(frozen=True)
class SharesPlot:
    """The losses, stacked from 100 % downward: the lower edge is the productive rest."""

    from_s: float
    to_s: float
    series: tuple[PlotSeries, ...]
    bins: tuple[ShareBin, ...]
    left_title: str = "ETTR"


@dataclass(frozen=True)
class PartsBar:
    """A bar of parts, in the order of the series."""

    label: str
    detail: str
    parts: tuple[float, ...]


@dataclass(frozen=True)
class PartsPlot:
    """Bars of parts. `whole`: each bar is as wide as the plot, and its parts are shares of itself."""

    series: tuple[PlotSeries, ...]
    bars: tuple[PartsBar, ...]
    unit: Unit
    whole: bool = False
    axis_title: str = ""


@dataclass(frozen=True)
class IntervalPoint:
    """A measured value with its interval; `high` None: no upper bound is known, `mid` None: only a lower bound is."""

    label: str
    low: float | None
    mid: float | None
    high: float | None
    detail: str


@dataclass(frozen=True)
class IntervalsPlot:
    """Values with intervals on a logarithmic axis."""

    points: tuple[IntervalPoint, ...]
    unit: Unit
    axis_title: str
    across_title: str


@dataclass(frozen=True)
class PoolStep:
    """The nodes wanted in a pool and the nodes in it, from this time on."""

    at_s: float
    wanted: int
    there: int


@dataclass(frozen=True)
class PoolTaking:
    """A recovery that a pool gave nodes to (`hit`), or could not."""

    at_s: float
    hit: bool
    text: str


@dataclass(frozen=True)
class PoolLane:
    """A standby pool over time."""

    label: str
    steps: tuple[PoolStep, ...]
    uses: tuple[PoolTaking, ...] = ()


@dataclass(frozen=True)
class StandbyPlot:
    """Standby pools one below the other."""

    from_s: float
    to_s: float
    lanes: tuple[PoolLane, ...]


Plot = TimelinePlot | SharesPlot | PartsPlot | IntervalsPlot | StandbyPlot


@dataclass(frozen=True)
class ReportSection:
    """A question with its answer, the plot that shows it, and the table with its numbers.

    Attributes:
        key: The section's name for links and tools: letters and dashes, never a text from outside.
        plot: The plot; None if there is nothing to draw: `answer` then says so.
        notes: Sentences below the plot: what is counted, and what is left out.
    """

    key: str
    question: str
    answer: str
    plot: Plot | None = None
    table: FigureTable | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ReportView:
    """A whole report.

    Attributes:
        scope: The job or user that the report is about; empty for everything.
        offset_s: Local time minus UTC on the machine that made it.
        doubts: Sentences about facts that may not be true.
    """

    title: str
    cluster: str
    from_s: float
    to_s: float
    made_at_s: float
    numbers: tuple[BigNumber, ...]
    sections: tuple[ReportSection, ...]
    scope: str = ""
    offset_s: int = 0
    doubts: tuple[str, ...] = field(default=())
