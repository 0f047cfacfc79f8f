"""The merged stacks as a picture: a flame graph in SVG, as wide as ranks are many, outermost functions on top.

A function is a box; where ranks went different ways, boxes stand side by side. Communication is blue, everything else
is warmer the fewer ranks are in it: the odd one out is red. Each box shows its function and ranks under the pointer.
There is no script in it, so it may be attached anywhere.
"""

from __future__ import annotations

from html import escape

from slurm_robust.localize.evidence import Capture
from slurm_robust.localize.ranks import fold, name
from slurm_robust.localize.stacks.merge import Branch, merged

WIDTH_PX = 1200
ROW_PX = 17
CHAR_PX = 6.6
"""Of the font that is asked for, at 11 px."""
MIN_BOX_PX = 0.2
"""Narrower boxes are not drawn: of 6,000 ranks and more a single one is, at the least, a hair."""
HAIR_PX = 1.5
"""Least width of a box where a rank stands apart from all others: it is the box that matters."""
_TITLE_PX = 4000
_COMMUNICATION = ("torch/distributed/", "torch/nn/parallel/distributed.py", "p2p_communication.py", "deepspeed/comm/")


def render_svg(capture: Capture, title: str = "") -> str:
    """A whole SVG document of one capture."""
    boxes: list[str] = []
    y_px = 2 * ROW_PX
    for role, root in merged(capture):
        caption = f"{role.value} processes of {name(root.ranks)}"
        boxes.append(_text(4, y_px + 12, shorten(caption, WIDTH_PX), bold=True))
        y_px = _draw(root, y_px + ROW_PX, boxes) + ROW_PX
    for node in capture.missing_nodes:
        boxes.append(_text(4, y_px + 12, f"{node}: no answer"))
        y_px += ROW_PX
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH_PX}" height="{y_px + 4}" '
        f'viewBox="0 0 {WIDTH_PX} {y_px + 4}" font-family="monospace" font-size="11">\n'
        f'<rect width="{WIDTH_PX}" height="{y_px + 4}" fill="#ffffff"/>\n'
    )
    return head + "\n".join([_text(4, 14, shorten(title, WIDTH_PX), bold=True), *boxes]) + "\n</svg>\n"


def _draw(root: Branch, top_px: float, boxes: list[str]) -> int:
    """Draw what is below `root`; returns the lower edge."""
    lowest = top_px
    todo = [(root, 0.0, float(WIDTH_PX), top_px)]
    while todo:
        node, left, width, y_px = todo.pop()
        children = node.in_order()
        for (step, child), box_px in zip(children, _widths(node, children, width), strict=True):
            if box_px >= MIN_BOX_PX:
                boxes.append(_box(step, child, len(root.ranks), (left, y_px, box_px)))
                lowest = max(lowest, y_px + ROW_PX)
                todo.append((child, left, box_px, y_px + ROW_PX))
            left += box_px
    return int(lowest)


def _widths(node: Branch, children: list[tuple[str, Branch]], width: float) -> list[float]:
    """Widths by number of ranks, none narrower than a hair where there is room for that."""
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


def _box(step: str, node: Branch, all_ranks: int, at: tuple[float, float, float]) -> str:
    left, y_px, width = at
    fill = "#8fb8de" if any(part in step for part in _COMMUNICATION) else _warmth(len(node.ranks) / max(all_ranks, 1))
    caption = escape(shorten(f"{step}: {len(node.ranks)} of {all_ranks} ranks: {fold(node.ranks)}", _TITLE_PX))
    label = shorten(step, width - 6) if width > 5 * CHAR_PX else ""
    return (
        f'<g><title>{caption}</title><rect x="{left:.1f}" y="{y_px}" width="{max(width - 0.4, 0.2):.1f}" '
        f'height="{ROW_PX - 1}" fill="{fill}"/>{_text(left + 3, y_px + 12, label) if label else ""}</g>'
    )


def _warmth(share: float) -> str:
    """From red for a single rank to pale for all of them."""
    green, blue = int(90 + 140 * share), int(70 + 120 * share)
    return f"#f0{green:02x}{blue:02x}"


def _text(x_px: float, y_px: float, text: str, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x_px:.1f}" y="{y_px}"{weight}>{escape(text)}</text>'


def shorten(text: str, width_px: float) -> str:
    """As much of a text as fits into so many pixels. Characters that XML does not allow are left out."""
    clean = "".join(c for c in text if c.isprintable())
    room = int(width_px / CHAR_PX)
    return clean if len(clean) <= room else clean[: max(room - 1, 0)] + "…"
