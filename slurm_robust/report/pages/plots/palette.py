"""Colours that colour-blind people can tell apart (after Okabe and Ito), each with a pattern of its own.

A colour is a CSS variable, so that the page follows dark and light. Never colour alone: neighbours differ in pattern.
"""

from __future__ import annotations

from slurm_robust.report.pages.markup import Markup, element, joined
from slurm_robust.report.pages.view import PlotSeries

_SLOTS = {
    "productive": 0, "running": 0, "back": 0, "wanted": 0,
    "queue": 1, "waiting": 1, "nobody": 1, "stop": 1,
    "start": 2, "launch": 2, "program": 2, "imports": 2,
    "detection": 3, "detect": 3, "either": 3, "capture": 3,
    "diagnosis": 4, "decide": 4, "tests": 4,
    "restart": 5, "lost": 5, "node": 5, "ended": 5, "failures": 5,
    "recomputation": 6, "shared": 6, "process_groups": 6,
    "checkpoint": 7, "load": 7, "watched": 7,
    "slow": 8, "first_step": 8, "open": 8,
    "unknown": 9, "": 9,
}  # fmt: skip
SLOTS = 10
_LINES: dict[int, tuple[str, ...]] = {
    1: ("M0,4 L8,4",),
    3: ("M0,8 L8,0",),
    4: ("M2,2 h2 M6,6 h2",),
    6: ("M0,0 L8,8",),
    7: ("M4,0 L4,8",),
    8: ("M0,8 L8,0", "M0,0 L8,8"),
    9: ("M1,6 h2 M5,2 h2",),
}
"""Strokes of a pattern's tile of 8 × 8 pixels, in the background's colour; the slots that lack are plain."""


def slot(key: str, place: int = 0) -> int:
    """Return the slot of a series; an unknown series gets one by its place among the others."""
    return _SLOTS.get(key, 1 + place % (SLOTS - 1))


def slots(series: tuple[PlotSeries, ...]) -> list[int]:
    """Return a slot for each series, all different while there are enough."""
    taken: set[int] = set()
    found = []
    for place, one in enumerate(series):
        wanted = slot(one.key, place)
        if wanted in taken:
            wanted = next((free for free in range(SLOTS) if free not in taken), wanted)
        taken.add(wanted)
        found.append(wanted)
    return found


def fill(number: int) -> str:
    """Return the fill of an SVG shape in this slot."""
    return f"url(#pattern-{number})"


def patterns() -> Markup:
    """Return all patterns, once for each page: other pictures refer to them."""
    tiles = []
    for number in range(SLOTS):
        strokes = (element("path", d=d, class_="weave") for d in _LINES.get(number, ()))
        ground = element("rect", width=8, height=8, class_=f"slot-{number}")
        attributes = {"id": f"pattern-{number}", "patternUnits": "userSpaceOnUse"}
        tiles.append(element("pattern", ground, *strokes, width=8, height=8, **attributes))
    return element("svg", element("defs", joined(tiles)), class_="patterns", width=0, height=0, aria_hidden="true")


def legend(series: tuple[PlotSeries, ...]) -> Markup:
    """Return the meaning of the colours, as a list that wraps."""
    items = []
    for one, number in zip(series, slots(series), strict=True):
        swatch = element("rect", x=0.5, y=0.5, width=15, height=11, fill=fill(number), class_="edge")
        box = element("svg", swatch, width=16, height=12, aria_hidden="true", focusable="false")
        items.append(element("li", box, one.label))
    return element("ul", joined(items), class_="legend")
