"""Draws bars of parts, one below the other: seconds by stage, failures by node."""

from __future__ import annotations

from slurm_robust.report.pages.formats import shown
from slurm_robust.report.pages.markup import Markup
from slurm_robust.report.pages.plots.axes import AxisScale, ticks
from slurm_robust.report.pages.plots.canvas import CHAR_PX, Canvas, fitted
from slurm_robust.report.pages.plots.palette import fill, slots
from slurm_robust.report.pages.view import PartsBar, PartsPlot, Unit

_LABEL_PX, _DETAIL_PX = 200, 150
_LEAST_PX = 1.5
"""A part that is there is seen, however small."""


def draw_parts(plot: PartsPlot, width: int, name: str, title: str) -> Markup:
    """Draw the bars, with an axis if they have one length in common to compare."""
    wide = width > 600
    row_px, bar_px = (30, 18) if wide else (46, 18)
    left, right = (_LABEL_PX, width - _DETAIL_PX) if wide else (2, width - 4)
    longest = max((sum(bar.parts) for bar in plot.bars), default=0) or 1.0
    said = f"{len(plot.bars)} bars of {', '.join(one.label for one in plot.series)}; the table below has the numbers."
    canvas = Canvas(width, name=name, title=title, description=said)
    bottom = len(plot.bars) * row_px + 2
    scale = AxisScale(0, longest, left, right)
    if not plot.whole:
        canvas.across(scale, ticks(0, longest, plot.unit, 6 if wide else 4), 0, bottom)
    for number, bar in enumerate(plot.bars):
        top = number * row_px + (5 if wide else 23)
        if wide:
            canvas.text((left - 8, top + 14), fitted(bar.label, left - 10), anchor="end")
        else:
            canvas.text((2, top - 6), fitted(bar.label, width - len(bar.detail) * CHAR_PX - 12))
        whole = sum(bar.parts) or 1.0
        end = _bar(canvas, plot, bar, AxisScale(0, whole if plot.whole else longest, left, right), (top, bar_px))
        if wide:
            canvas.text((end + 8, top + 14), fitted(bar.detail, width - end - 8), class_="faint")
        else:
            canvas.text((width - 2, top - 6), bar.detail, anchor="end", class_="faint")
    return canvas.render(bottom + (4 if plot.whole else 24))


def _bar(canvas: Canvas, plot: PartsPlot, bar: PartsBar, scale: AxisScale, at: tuple[float, float]) -> float:
    """Draw one bar at its top and height; returns its right end."""
    top, height = at
    done, end = 0.0, scale.first_px
    for series, number, part in zip(plot.series, slots(plot.series), bar.parts, strict=True):
        if part <= 0:
            continue
        begin = max(scale.px(done), end)
        done += part
        end = max(scale.px(done), begin + _LEAST_PX)
        said = shown(part, plot.unit)
        canvas.rect((begin, top, end - begin, height), fill=fill(number), hint=f"{series.label}: {said}", class_="edge")
        if plot.unit is Unit.SECONDS and len(said) * CHAR_PX + 10 < end - begin and len(plot.series) > 1:
            middle, half = (begin + end) / 2, len(said) * CHAR_PX / 2 + 2
            canvas.rect((middle - half, top + 2.5, 2 * half, height - 5), rx="3", class_="tag")
            canvas.text((middle, top + 13.5), said, anchor="middle", class_="small")
    return end
