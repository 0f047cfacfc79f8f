"""Draws the merged stacks as a flame graph in SVG: width shows the number of ranks, outermost functions are on top.

Each function is a box; if ranks went different ways, boxes stand side by side. Communication is blue. All other boxes
are warmer the fewer ranks they have: a single rank is red. Each box shows its function and ranks under the pointer. The
SVG has no script, so it may be attached anywhere. `flame_boxes` computes the boxes alone, for pages that draw them in
their own colours.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from html import escape

from slurm_robust.core.text import printable
from slurm_robust.localize.evidence import Capture
from slurm_robust.localize.ranks import fold, name
from slurm_robust.localize.stacks.merge import Branch, merged

WIDTH_PX = 1200
ROW_PX = 17
CHAR_PX = 6.6
"""Of the font that is asked for, at 11 px."""
MIN_BOX_PX = 0.2
"""Narrower boxes are not drawn: a single rank of 6,000 or more is still drawn as a hair."""
HAIR_PX = 1.5
"""The least width of a box if a rank stands apart from all others: that box matters most."""
_TITLE_PX = 4000
_COMMUNICATION = ("torch/distributed/", "torch/nn/parallel/distributed.py", "p2p_communication.py", "deepspeed/comm/")


@dataclass(frozen=True)
class FlameBox:
    """A function with the ranks that are in it.

    Attributes:
        depth: Number of its callers.
        step: `function (file:line)`.
        of_ranks: How many ranks the whole tree has.
    """

    depth: int
    left_px: float
    width_px: float
    step: str
    ranks: Set[int]
    of_ranks: int

    @property
    def communicates(self) -> bool:
        """Whether this is the part of a program in which ranks wait for each other."""
        return any(part in self.step for part in _COMMUNICATION)

    @property
    def caption(self) -> str:
        """Function and ranks, as a sentence."""
        return f"{self.step}: {len(self.ranks)} of {self.of_ranks} ranks: {fold(self.ranks)}"


def flame_boxes(root: Branch, width_px: float) -> list[FlameBox]:
    """Return the boxes of a tree, callers before the functions that they call. Boxes too narrow to see are left out."""
    boxes: list[FlameBox] = []
    todo = [(root, 0.0, width_px, 0)]
    while todo:
        node, left, width, depth = todo.pop()
        children = node.in_order()
        for (step, child), box_px in zip(children, _widths(node, children, width), strict=True):
            if box_px >= MIN_BOX_PX:
                boxes.append(FlameBox(depth, left, box_px, step, child.ranks, len(root.ranks)))
                todo.append((child, left, box_px, depth + 1))
            left += box_px
    return boxes


def render_svg(capture: Capture, title: str = "") -> str:
    """Return a whole SVG document of one capture."""
    drawn: list[str] = []
    y_px = 2 * ROW_PX
    for role, root in merged(capture):
        caption = f"{role.value} processes of {name(root.ranks)}"
        drawn.append(_text(4, y_px + 12, shorten(caption, WIDTH_PX), bold=True))
        boxes = flame_boxes(root, WIDTH_PX)
        drawn.extend(_box(box, y_px + (box.depth + 1) * ROW_PX) for box in boxes)
        y_px += ROW_PX * (2 + max((box.depth + 1 for box in boxes), default=0))
    for node in capture.missing_nodes:
        drawn.append(_text(4, y_px + 12, f"{node}: no answer"))
        y_px += ROW_PX
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH_PX}" height="{y_px + 4}" '
        f'viewBox="0 0 {WIDTH_PX} {y_px + 4}" font-family="monospace" font-size="11">\n'
        f'<rect width="{WIDTH_PX}" height="{y_px + 4}" fill="#ffffff"/>\n'
    )
    return head + "\n".join([_text(4, 14, shorten(title, WIDTH_PX), bold=True), *drawn]) + "\n</svg>\n"


def _widths(node: Branch, children: list[tuple[str, Branch]], width: float) -> list[float]:
    """Return widths by number of ranks, with the width of a hair at least, if there is room for that."""
    if not children:
        return []
    whole = max(len(node.ranks), sum(len(child.ranks) for _, child in children))
    widths = [width * len(child.ranks) / whole for _, child in children]
    if HAIR_PX * len(widths) > width / 2:
        return widths
    lacking = sum(HAIR_PX - w for w in widths if w < HAIR_PX)
    room = sum(w for w in widths if w >= HAIR_PX)
    if lacking <= 0 or room <= 0:
        return widths
    share = (room - lacking) / room
    return [HAIR_PX if w < HAIR_PX else max(w * share, HAIR_PX) for w in widths]


def _box(box: FlameBox, y_px: float) -> str:
    fill = "#8fb8de" if box.communicates else _warmth(len(box.ranks) / max(box.of_ranks, 1))
    caption = escape(shorten(box.caption, _TITLE_PX))
    label = shorten(box.step, box.width_px - 6) if box.width_px > 5 * CHAR_PX else ""
    return (
        f'<g><title>{caption}</title><rect x="{box.left_px:.1f}" y="{y_px}" '
        f'width="{max(box.width_px - 0.4, 0.2):.1f}" height="{ROW_PX - 1}" fill="{fill}"/>'
        f"{_text(box.left_px + 3, y_px + 12, label) if label else ''}</g>"
    )


def _warmth(share: float) -> str:
    """Return a colour from red for a single rank to pale for all ranks."""
    green, blue = int(90 + 140 * share), int(70 + 120 * share)
    return f"#f0{green:02x}{blue:02x}"


def _text(x_px: float, y_px: float, text: str, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x_px:.1f}" y="{y_px}"{weight}>{escape(text)}</text>'


def shorten(text: str, width_px: float) -> str:
    """Return the part of a text that fits into so many pixels. Characters that XML does not allow are left out."""
    clean = printable(text, "")
    room = int(width_px / CHAR_PX)
    return clean if len(clean) <= room else clean[: max(room - 1, 0)] + "…"
