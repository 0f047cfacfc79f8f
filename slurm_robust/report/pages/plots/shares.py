"""Draws the losses over time, stacked from 100 % downward: the lower edge is the productive rest."""

from __future__ import annotations

from slurm_robust.report.pages.formats import moment, share
from slurm_robust.report.pages.markup import Markup
from slurm_robust.report.pages.plots.axes import AxisScale, step_for, ticks, time_ticks
from slurm_robust.report.pages.plots.canvas import Canvas
from slurm_robust.report.pages.plots.palette import fill, slots
from slurm_robust.report.pages.view import ShareBin, SharesPlot, Unit

_LEFT_PX, _TOP_PX = 48, 8


def draw_shares(plot: SharesPlot, width: int, name: str, title: str) -> Markup:
    """Steps, one a bin: an average over a bin is not a point on a curve. A bin in which nothing ran stays empty."""
    height = 300 if width > 600 else 240
    floor = _floor(plot)
    told = [f"{one.label}" for one in plot.series]
    said = f"From the top: {', '.join(told)}. The axis begins at {share(floor)}."
    canvas = Canvas(width, name=name, title=title, description=said)
    across = AxisScale(plot.from_s, plot.to_s, _LEFT_PX, width - 6)
    up = AxisScale(floor, 1.0, height, _TOP_PX)
    canvas.upward(up, ticks(floor, 1.0, Unit.SHARE), _LEFT_PX, width - 6)
    canvas.across(across, time_ticks(plot.from_s, plot.to_s, 8 if width > 600 else 4), _TOP_PX, height)
    for number, place in enumerate(slots(plot.series)):
        canvas.path(_area(plot.bins, number, across, up), fill=fill(place))
    _edge(canvas, plot, across, up)
    return canvas.render(height + 24)


def _floor(plot: SharesPlot) -> float:
    """Return a round share below the smallest one left; 90 % at the most, so that a calm week looks calm."""
    least = min((1 - sum(one.shares) for one in plot.bins if one.shares), default=0.9)
    step = step_for(1 - max(min(least, 0.9), 0.0), 5)
    below = 1.0
    while below > max(least, 0.0) + 1e-9 or below > 0.9 + 1e-9:
        below -= step
    return max(round(below, 6), 0.0)


def _area(bins: tuple[ShareBin, ...], number: int, across: AxisScale, up: AxisScale) -> str:
    """Return one series as a path: for each run of touching bins, the upper edge rightward, the lower edge back."""
    words = []
    for run in _runs(bins):
        over: list[str] = []
        under: list[str] = []
        for one in run:
            top = up.px(1 - sum(one.shares[:number]))
            low = up.px(1 - sum(one.shares[: number + 1]))
            begin, end = across.px(one.begin_s), across.px(one.end_s)
            over += [f"{begin:.1f},{top:.1f}", f"{end:.1f},{top:.1f}"]
            under += [f"{begin:.1f},{low:.1f}", f"{end:.1f},{low:.1f}"]
        if any(one.shares[number] > 0 for one in run):
            words.append(f"M{' L'.join([*over, *reversed(under)])} Z")
    return " ".join(words)


def _runs(bins: tuple[ShareBin, ...]) -> list[list[ShareBin]]:
    runs: list[list[ShareBin]] = []
    for one in bins:
        if not one.shares:
            continue
        if runs and abs(runs[-1][-1].end_s - one.begin_s) < 1e-6:
            runs[-1].append(one)
        else:
            runs.append([one])
    return runs


def _edge(canvas: Canvas, plot: SharesPlot, across: AxisScale, up: AxisScale) -> None:
    """Draw the line below which nothing was lost, and a place to point at for each bin."""
    for run in _runs(plot.bins):
        points = []
        for one in run:
            y = up.px(1 - sum(one.shares))
            points += [f"{across.px(one.begin_s):.1f},{y:.1f}", f"{across.px(one.end_s):.1f},{y:.1f}"]
        canvas.path(f"M{' L'.join(points)}", class_="edge-line")
    for one in plot.bins:
        if one.shares:
            begin, end = across.px(one.begin_s), across.px(one.end_s)
            hint = f"{moment(one.begin_s, year=False, seconds=False)}: {plot.left_title} {share(1 - sum(one.shares))}"
            canvas.rect((begin, _TOP_PX, end - begin, up.px(up.low) - _TOP_PX), class_="touch", hint=hint)
