"""Draws measured values with their intervals, on a logarithmic axis."""

from __future__ import annotations

from slurm_robust.report.pages.formats import shown
from slurm_robust.report.pages.markup import Markup
from slurm_robust.report.pages.plots.axes import AxisScale, log_bounds, log_ticks
from slurm_robust.report.pages.plots.canvas import CHAR_PX, Canvas, fitted
from slurm_robust.report.pages.view import IntervalPoint, IntervalsPlot

_LEFT_PX, _TOP_PX = 76, 14


def draw_intervals(plot: IntervalsPlot, width: int, name: str, title: str) -> Markup:
    """Draw a column for each point: its value, its interval, and an arrow if the interval has no upper end."""
    height = 280 if width > 600 else 240
    known = [v for p in plot.points for v in (p.low, p.mid, p.high) if v is not None and v > 0]
    low, high = log_bounds(known or [1.0])
    said = f"{len(plot.points)} sizes; the bars are intervals, an arrow means that no upper bound is known."
    canvas = Canvas(width, name=name, title=title, description=said)
    up = AxisScale(low, high, height, _TOP_PX, log=True)
    canvas.upward(up, log_ticks(low, high, plot.unit), _LEFT_PX, width - 4)
    room = (width - _LEFT_PX - 8) / max(len(plot.points), 1)
    for number, point in enumerate(plot.points):
        x = _LEFT_PX + room * (number + 0.5)
        _point(canvas, plot, point, up, x)
        # A label that would run into its neighbour's is written on a second line.
        crowded = any(len(p.label) * CHAR_PX > room - 6 for p in plot.points)
        y = height + 18 + (15 if crowded and number % 2 else 0)
        canvas.text((x, y), fitted(point.label, room * (2 if crowded else 1) - 6), anchor="middle", class_="faint")
    return canvas.render(height + 40)


def _point(canvas: Canvas, plot: IntervalsPlot, point: IntervalPoint, up: AxisScale, x: float) -> None:
    bottom = up.px(point.low) if point.low else up.px(up.low)
    open_above = point.high is None and point.low is not None
    top = up.px(point.high) if point.high is not None else up.last_px
    parts = [f"{point.label}: {shown(point.mid, plot.unit)}", point.detail]
    hint = ", ".join(part for part in parts if part)
    if point.low is not None:
        canvas.line((x, bottom), (x, top), "whisker")
        canvas.line((x - 7, bottom), (x + 7, bottom), "whisker")
        if open_above:
            canvas.path(f"M{x - 7:.1f},{top + 9:.1f} L{x:.1f},{top:.1f} L{x + 7:.1f},{top + 9:.1f}", class_="whisker")
        else:
            canvas.line((x - 7, top), (x + 7, top), "whisker")
    if point.mid is not None and point.mid > 0:
        y = up.px(point.mid)
        shape = f"M{x - 6:.1f},{y:.1f} l6,-6 l6,6 l-6,6 z"
        canvas.path(shape, class_="dot", hint=hint)
        said = shown(point.mid, plot.unit)
        if len(said) * CHAR_PX < 90:
            canvas.text((x + 10, y + 4), said, class_="small halo")
    elif point.low is not None:
        canvas.text((x + 10, bottom - 4), f"> {shown(point.low, plot.unit)}", class_="small halo")
