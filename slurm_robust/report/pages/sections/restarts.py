"""Shows which stages of restarts take how many seconds."""

from __future__ import annotations

from slurm_robust.core.model import Road
from slurm_robust.report.figures.all_figures import Figures
from slurm_robust.report.figures.restarts import STAGES
from slurm_robust.report.pages.formats import count, shown
from slurm_robust.report.pages.sections.cut import in_words
from slurm_robust.report.pages.view import (
    Cell,
    FigureTable,
    PartsBar,
    PartsPlot,
    PlotSeries,
    ReportSection,
    TableColumn,
    Unit,
)

_KEYS = {"placement": "launch", "process groups": "process_groups", "localisation": "diagnosis", "decision": "stop"}
_AXIS = "Each bar is a road back to training, and its parts are the medians of its stages"
_NOT_BACK = frozenset({Road.STOP, Road.ALERT_ONLY})
"""Roads that the table has for how soon the fault was known, though they do not restart the job."""
COLUMNS = (
    TableColumn("road", "road"),
    TableColumn("restarts", "times", Unit.COUNT),
    TableColumn("back_median_s", "back after (median)", Unit.SECONDS),
    TableColumn("back_p90_s", "back after (90 %)", Unit.SECONDS),
    TableColumn("placed_median_s", "decision to running", Unit.SECONDS),
    *(TableColumn(f"{name.replace(' ', '_')}_s", name, Unit.SECONDS) for name, _, _ in STAGES),
)


def restarts_section(figures: Figures) -> ReportSection:
    """Return the section of restarts: a bar for each road, of the medians of its stages."""
    question = "Where do restarts spend their seconds?"
    rows = sorted(figures.restarts, key=lambda row: -row.restarts)
    if not rows:
        return ReportSection("restarts", question, "No training had to be restarted in this time.")
    bars, cells, notes = [], list[tuple[Cell, ...]](), ["Medians do not add: a bar is not the median of the whole."]
    for row in rows:
        medians = tuple(row.stages[name].median if name in row.stages else None for name, _, _ in STAGES)
        back = row.back_s.median
        back_in = f", back in {shown(back, Unit.SECONDS)}" if back is not None else ""
        if any(medians):
            bars.append(PartsBar(in_words(row.road), f"{row.restarts:,} ×{back_in}", tuple(m or 0.0 for m in medians)))
        cells.append((row.road, row.restarts, back, row.back_s.p90, row.placed_s.median, *medians))
        if row.odd:
            notes.append(f"{count(row.odd, 'stage')} of {in_words(row.road)} would end before they begin: left out.")
    series = tuple(PlotSeries(_KEYS.get(name, name.replace(" ", "_")), name) for name, _, _ in STAGES)
    plot = PartsPlot(series, tuple(bars), Unit.SECONDS, whole=True, axis_title=_AXIS) if bars else None
    table = FigureTable("Medians by road, the most used first", COLUMNS, tuple(cells))
    roads = [row for row in rows if row.road not in _NOT_BACK]
    if not roads:
        answer = "No training was restarted: each failure was left to a person."
        return ReportSection("restarts", question, answer, plot, table, tuple(notes))
    first = roads[0]
    slowest = max(((s.median or 0.0, name) for name, s in first.stages.items()), default=(0.0, ""))
    answer = f"{count(sum(row.restarts for row in roads), 'restart').capitalize()}. "
    answer += f"The usual road, {in_words(first.road)}, "
    answer += (
        f"is back after {shown(first.back_s.median, Unit.SECONDS)} in the median"
        if first.back_s.median
        else "has no times"
    )
    answer += f"; the longest stage is {slowest[1]}, {shown(slowest[0], Unit.SECONDS)}." if slowest[0] > 0 else "."
    return ReportSection("restarts", question, answer, plot, table, tuple(notes))
