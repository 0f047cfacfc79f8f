"""Draws standby pools over time: nodes wanted, nodes there, and the recoveries that a pool could serve or not."""

from __future__ import annotations

from slurm_robust.report.pages.markup import Markup
from slurm_robust.report.pages.plots.axes import AxisScale, ticks, time_ticks
from slurm_robust.report.pages.plots.canvas import Canvas, fitted
from slurm_robust.report.pages.view import PoolLane, PoolStep, StandbyPlot, Unit

_LANE_PX, _HEAD_PX, _LEFT_PX = 78, 20, 34
_MOST_STEPS = 400
"""A pool that changes every minute is drawn by its least in each stretch, which is what matters."""


def draw_standby(plot: StandbyPlot, width: int, name: str, title: str) -> Markup:
    """Draw a lane for each pool: an area for the nodes in it, a line for the nodes wanted."""
    said = "A lane for each pool: area, nodes there; line, nodes wanted; marks, recoveries that took from it."
    canvas = Canvas(width, name=name, title=title, description=said)
    scale = AxisScale(plot.from_s, plot.to_s, _LEFT_PX, width - 10)
    lane_px = _LANE_PX + _HEAD_PX
    bottom = len(plot.lanes) * lane_px
    canvas.across(scale, time_ticks(plot.from_s, plot.to_s, 8 if width > 600 else 4), 4, bottom)
    for number, lane in enumerate(plot.lanes):
        _lane(canvas, lane, scale, number * lane_px)
    return canvas.render(bottom + 24)


def _lane(canvas: Canvas, lane: PoolLane, scale: AxisScale, top: float) -> None:
    most = max([1, *(step.wanted for step in lane.steps), *(step.there for step in lane.steps)])
    up = AxisScale(0, most, top + _HEAD_PX + _LANE_PX - 12, top + _HEAD_PX + 6)
    canvas.upward(up, ticks(0, most, Unit.COUNT, 2), _LEFT_PX, scale.last_px)
    steps = _thinned(lane.steps, scale.low, scale.high)
    there, wanted = [(s.at_s, s.there) for s in steps], [(s.at_s, s.wanted) for s in steps]
    if steps:
        edge = _edge(there, scale, up)
        first = scale.px(steps[0].at_s)
        canvas.path(f"M{first:.1f},{up.first_px} L{edge} L{scale.last_px},{up.first_px} Z", class_="pool")
        canvas.path(f"M{_edge(wanted, scale, up)}", class_="wanted")
    for use in lane.uses:
        x, y = scale.px(use.at_s), up.last_px + 8
        if use.hit:
            shape = f"M{x - 6:.1f},{y - 6:.1f} l12,0 l-6,11 z"
        else:
            shape = f"M{x - 5:.1f},{y - 5:.1f} l10,10 m0,-10 l-10,10"
        canvas.path(shape, class_="hit" if use.hit else "miss", hint=use.text)
    canvas.text((0, top + 16), fitted(lane.label, canvas.width))


def _edge(values: list[tuple[float, int]], scale: AxisScale, up: AxisScale) -> str:
    points = []
    for number, (at_s, value) in enumerate(values):
        until = values[number + 1][0] if number + 1 < len(values) else scale.high
        points += [f"{scale.px(at_s):.1f},{up.px(value):.1f}", f"{scale.px(until):.1f},{up.px(value):.1f}"]
    return " L".join(points)


def _thinned(steps: tuple[PoolStep, ...], from_s: float, to_s: float) -> list[PoolStep]:
    """Return the steps; if there are many, one for each stretch of time, with the fewest nodes of it."""
    if len(steps) <= _MOST_STEPS:
        return list(steps)
    least: dict[int, PoolStep] = {}
    for step in steps:
        stretch = int((step.at_s - from_s) / max(to_s - from_s, 1e-9) * _MOST_STEPS)
        if stretch not in least or step.there < least[stretch].there:
            least[stretch] = step
    return [least[stretch] for stretch in sorted(least)]
