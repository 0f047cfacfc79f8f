"""Shapes on a sheet, collected into one SVG with a title and a description for those who do not see it."""

from __future__ import annotations

from slurm_robust.report.pages.markup import Markup, element, joined, visible
from slurm_robust.report.pages.plots.axes import AxisScale, Tick

CHAR_PX, SMALL_CHAR_PX = 7.4, 6.5
"""The width of a character of the 13 px system font, and of the small one, rather too wide than too narrow."""


def fitted(raw: str, width_px: float, char_px: float = CHAR_PX) -> str:
    """Return as much of a text as fits, with an ellipsis; the whole text belongs into a title."""
    room = max(int(width_px / char_px), 1)
    shown = visible(raw)
    return shown if len(shown) <= room else shown[: room - 1] + "…"


class Canvas:
    """One picture, `width` pixels wide; its height is known at the end."""

    def __init__(self, width: float, *, name: str, title: str, description: str) -> None:
        self.width = width
        self._name = name
        self._head = (title, description)
        self._parts: list[Markup] = []

    def add(self, part: Markup) -> None:
        """Add a shape that is made already."""
        self._parts.append(part)

    def rect(self, at: tuple[float, float, float, float], *, hint: str = "", **attributes: str) -> None:
        """Draw a rectangle: left, top, width, height. `hint` is shown under the pointer."""
        left, top, width, height = at
        shape = {"x": left, "y": top, "width": max(width, 0.0), "height": max(height, 0.0)}
        if hint:
            self.add(element("g", element("title", hint), element("rect", **shape, **attributes)))
        else:
            self.add(element("rect", **shape, **attributes))

    def line(self, begin: tuple[float, float], end: tuple[float, float], class_: str) -> None:
        """Draw a straight line."""
        self.add(element("line", x1=begin[0], y1=begin[1], x2=end[0], y2=end[1], class_=class_))

    def path(self, d: str, *, hint: str = "", **attributes: str) -> None:
        """Draw a path in SVG's own letters."""
        if hint:
            self.add(element("g", element("title", hint), element("path", d=Markup(d), **attributes)))
        else:
            self.add(element("path", d=Markup(d), **attributes))

    def text(self, at: tuple[float, float], raw: str, *, anchor: str = "start", class_: str | None = None) -> None:
        """Draw a line of text: left end, middle or right end (`start`, `middle`, `end`) and baseline."""
        self.add(
            element("text", raw, x=at[0], y=at[1], text_anchor=None if anchor == "start" else anchor, class_=class_)
        )

    def across(self, scale: AxisScale, ticks: list[Tick], top_px: float, bottom_px: float) -> None:
        """Draw upright grid lines with labels below; a label that would touch the one before is left out."""
        taken_px = -1e9
        for tick in ticks:
            x = scale.px(tick.value)
            self.line((x, top_px), (x, bottom_px), "grid")
            half = len(tick.label) * CHAR_PX / 2
            middle = min(max(x, half), self.width - half)
            if middle - half > taken_px:
                self.text((middle, bottom_px + 17), tick.label, anchor="middle", class_="faint")
                taken_px = middle + half + 6

    def upward(self, scale: AxisScale, ticks: list[Tick], left_px: float, right_px: float) -> None:
        """Level lines of the grid, with their labels on the left."""
        for tick in ticks:
            y = scale.px(tick.value)
            self.line((left_px, y), (right_px, y), "grid")
            self.text((left_px - 6, y + 4), tick.label, anchor="end", class_="faint")

    def render(self, height: float) -> Markup:
        """Return the whole SVG."""
        title, description = self._head
        ids = f"{self._name}-title {self._name}-desc"
        head = [
            element("title", title, id=f"{self._name}-title"),
            element("desc", description, id=f"{self._name}-desc"),
        ]
        body = joined([*head, *self._parts], "")
        sheet = f"0 0 {self.width:.0f} {height:.0f}"
        return element("svg", body, role="img", aria_labelledby=ids, viewBox=sheet, width=self.width, height=height)
