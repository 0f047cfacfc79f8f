"""Draws any plot of a view for the page: its legend, and a picture for desks and one for phones."""

from __future__ import annotations

from slurm_robust.report.pages.markup import Markup, element, joined
from slurm_robust.report.pages.plots.intervals import draw_intervals
from slurm_robust.report.pages.plots.palette import legend
from slurm_robust.report.pages.plots.parts import draw_parts
from slurm_robust.report.pages.plots.shares import draw_shares
from slurm_robust.report.pages.plots.standby import draw_standby
from slurm_robust.report.pages.plots.timeline import OUTCOMES, STATES, draw_timeline
from slurm_robust.report.pages.view import IntervalsPlot, PartsPlot, Plot, SharesPlot, StandbyPlot, TimelinePlot

WIDE_PX, NARROW_PX = 860, 340


def drawn(plot: Plot, name: str, title: str) -> Markup:
    """Return the legend and both pictures; a style sheet shows the picture that fits."""
    wide = element("div", picture(plot, WIDE_PX, f"{name}-wide", title), class_="wide")
    narrow = element("div", picture(plot, NARROW_PX, f"{name}-narrow", title), class_="narrow")
    return joined([explained(plot), wide, narrow])


def picture(plot: Plot, width: int, name: str, title: str) -> Markup:
    """Return one SVG of this width in pixels; `name` is unique in the page."""
    match plot:
        case TimelinePlot():
            return draw_timeline(plot, width, name, title)
        case SharesPlot():
            return draw_shares(plot, width, name, title)
        case PartsPlot():
            return draw_parts(plot, width, name, title)
        case IntervalsPlot():
            return draw_intervals(plot, width, name, title)
        case StandbyPlot():
            return draw_standby(plot, width, name, title)


def explained(plot: Plot) -> Markup:
    """Return the meaning of the colours, signs and axes."""
    match plot:
        case TimelinePlot():
            words = {
                "back": "trains again",
                "ended": "ended for good",
                "watched": "nothing was done",
                "open": "under way",
            }
            signs = [
                element("li", element("span", sign, class_=f"badge {key}"), f"incident: {words[key]}")
                for key, sign in OUTCOMES
            ]
            return joined([legend(STATES), element("ul", joined(signs), class_="legend")])
        case SharesPlot() | PartsPlot():
            axis = (
                plot.axis_title
                if isinstance(plot, PartsPlot)
                else f"{plot.left_title} is the line; above it, up to 100 %, stands what the rest of the time went into"
            )
            shown = legend(plot.series) if len(plot.series) > 1 else Markup("")
            return joined([shown, element("p", axis, class_="axis")])
        case IntervalsPlot():
            return element("p", f"{plot.axis_title}, against {plot.across_title}", class_="axis")
        case StandbyPlot():
            return element("p", "Nodes in each pool; ▼ gave a node to a recovery, ✕ had none left", class_="axis")
