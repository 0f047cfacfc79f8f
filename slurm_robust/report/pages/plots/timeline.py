"""Draws trainings one below the other: when each waited, ran, and stood still for a failure, with its incidents."""

from __future__ import annotations

from collections.abc import Iterable

from slurm_robust.report.pages.formats import count
from slurm_robust.report.pages.markup import Markup
from slurm_robust.report.pages.plots.axes import AxisScale, time_ticks
from slurm_robust.report.pages.plots.canvas import CHAR_PX, SMALL_CHAR_PX, Canvas, fitted
from slurm_robust.report.pages.plots.palette import fill, slot
from slurm_robust.report.pages.view import PlotSeries, TimelineBar, TimelineMark, TimelinePlot, TimelineRow

STATES = (
    PlotSeries("waiting", "waits in the queue"),
    PlotSeries("running", "runs"),
    PlotSeries("lost", "stands still for a failure"),
)
OUTCOMES = (("back", "✓"), ("ended", "✕"), ("watched", "○"), ("open", "…"))
"""The outcomes of incidents, with their signs."""
_SIGNS = dict(OUTCOMES)
_BAR_PX, _MARK_PX = 16, 15
_LABEL_PX = 210


def draw_timeline(plot: TimelinePlot, width: int, name: str, title: str) -> Markup:
    """Draw the rows with a time axis; on a narrow sheet the labels stand above the bars."""
    wide = width > 600
    left = _LABEL_PX if wide else 2
    row_px = 34 if wide else 46
    said = f"{count(len(plot.rows), 'training')}, one a row; the table below has the same."
    canvas = Canvas(width, name=name, title=title, description=said)
    scale = AxisScale(plot.from_s, plot.to_s, left, width - 14)
    bottom = len(plot.rows) * row_px + 4
    canvas.across(scale, time_ticks(plot.from_s, plot.to_s, 8 if wide else 4), 0, bottom)
    for number, row in enumerate(plot.rows):
        top = number * row_px + (14 if wide else 26)
        _label(canvas, row, (width, top), wide=wide)
        for state in STATES:
            _bars(canvas, scale, top, [bar for bar in row.bars if bar.state == state.key])
        _marks(canvas, scale, top, row.marks)
    return canvas.render(bottom + 24)


def _label(canvas: Canvas, row: TimelineRow, at: tuple[float, float], *, wide: bool) -> None:
    width, top = at
    if wide:
        canvas.text((0, top + 4), fitted(row.label, _LABEL_PX - 8))
        canvas.text((0, top + 19), fitted(row.detail, _LABEL_PX - 8, SMALL_CHAR_PX), class_="faint small")
        return
    canvas.text((2, top - 7), fitted(row.label, width * 0.56))
    canvas.text(
        (width - 2, top - 7), fitted(row.detail, width * 0.44, SMALL_CHAR_PX), anchor="end", class_="faint small"
    )


def _bars(canvas: Canvas, scale: AxisScale, top: float, bars: Iterable[TimelineBar]) -> None:
    """Draw bars of one state; bars that would touch are drawn as one: a month of restarts is a few rectangles."""
    runs: list[list[float]] = []
    last = None
    for bar in sorted(bars, key=lambda b: b.begin_s):
        if bar.end_s < scale.low or bar.begin_s > scale.high:
            continue
        begin, end = scale.px(bar.begin_s), max(scale.px(bar.end_s), scale.px(bar.begin_s) + 1)
        if runs and begin <= runs[-1][1] + 0.7:
            runs[-1][1] = max(runs[-1][1], end)
        else:
            runs.append([begin, end])
        last = bar
    for begin, end in runs:
        canvas.rect((begin, top, end - begin, _BAR_PX), fill=fill(slot(last.state if last else "")))
    if last is not None and last.open and runs:
        x = runs[-1][1]
        canvas.path(f"M{x:.1f},{top} l7,{_BAR_PX / 2} l-7,{_BAR_PX / 2} z", fill=fill(slot(last.state)), hint="goes on")


def _marks(canvas: Canvas, scale: AxisScale, top: float, marks: tuple[TimelineMark, ...]) -> None:
    """Draw a disc with the outcome's sign for each incident; discs that would overlap become one with their number."""
    inside = sorted((m for m in marks if scale.low <= m.at_s <= scale.high), key=lambda m: m.at_s)
    groups: list[list[TimelineMark]] = []
    for mark in inside:
        if groups and scale.px(mark.at_s) - scale.px(groups[-1][0].at_s) < _MARK_PX:
            groups[-1].append(mark)
        else:
            groups.append([mark])
    for group in groups:
        x = scale.px(group[0].at_s)
        hint = group[0].text if len(group) == 1 else "; ".join(m.text for m in group[:5])
        more = f"; and {len(group) - 5} more" if len(group) > 5 else ""
        sign = _SIGNS.get(group[0].outcome, "?") if len(group) == 1 else str(len(group))
        worst = next((key for key in ("open", "ended", "back") if any(m.outcome == key for m in group)), "watched")
        half = max(_MARK_PX, len(sign) * CHAR_PX + 6) / 2
        x = min(max(x, half), canvas.width - half)
        top_px = top + (_BAR_PX - _MARK_PX) / 2
        canvas.rect((x - half, top_px, 2 * half, _MARK_PX), rx="7.5", class_=f"disc {worst}", hint=hint + more)
        canvas.text((x, top_px + 11.5), sign, anchor="middle", class_="sign")
