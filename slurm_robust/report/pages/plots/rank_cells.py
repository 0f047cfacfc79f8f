"""Draws a job's ranks as cells, in the groups in which they work together, coloured by what each was seen to do."""

from __future__ import annotations

from slurm_robust.report.pages.incident_view import RankActivity, RankCell, RankRow
from slurm_robust.report.pages.markup import Markup, element, joined
from slurm_robust.report.pages.plots.canvas import Canvas, fitted
from slurm_robust.report.pages.plots.palette import fill

STATES = {
    RankActivity.WAITS: (0, "", "waits for other ranks"),
    RankActivity.ELSEWHERE: (3, "●", "is somewhere else"),
    RankActivity.HELD: (4, "‖", "is stopped, or in the kernel"),
    RankActivity.ENDED: (5, "✕", "has ended"),
    RankActivity.MISSING: (1, "?", "not seen"),
}
"""State → its pattern, its sign, and its meaning."""
_SIZES = ((80, 36), (400, 22), (2000, 12), (6000, 8))
"""The largest number of cells → the size of one cell in pixels; for more cells, the smallest size is taken."""
_SMALLEST_PX, _LABEL_PX = 6, 96


def draw_ranks(rows: tuple[RankRow, ...], width: int, name: str) -> Markup:
    """Draw the rows; cells that do not fit beside the label go on in the next line."""
    count = sum(len(group) for row in rows for group in row.groups)
    size = next((px for most, px in _SIZES if count <= most), _SMALLEST_PX)
    if width < 600:
        size = max(_SMALLEST_PX, min(size, 22))
    canvas = Canvas(width, name=name, title="What each rank did", description=f"{count} cells in {len(rows)} rows.")
    left = _LABEL_PX if width > 600 else 0
    y = 4.0
    for row in rows:
        if row.label:
            canvas.text((0, y + (14 if left else 12)), fitted(row.label, left - 6 if left else width), class_="faint")
            y += 0 if left else 18
        y = _row(canvas, row, (left, y), size)
    return canvas.render(y)


def _row(canvas: Canvas, row: RankRow, at: tuple[float, float], size: int) -> float:
    left, y = at
    x = left
    gap = max(size / 3, 2)
    for group in row.groups:
        wide = len(group) * size
        if x > left and x + wide > canvas.width - 2:
            x, y = left, y + size + 2
        for cell in group:
            if x + size > canvas.width:
                x, y = left, y + size + 2
            _cell(canvas, cell, (x, y), size)
            x += size
        x += gap
    return y + size + max(gap, 6)


def _cell(canvas: Canvas, cell: RankCell, at: tuple[float, float], size: int) -> None:
    x, y = at
    number, sign, _ = STATES[cell.state]
    room = 1.5 if size > 10 else 0.5
    class_ = "cell odd" if cell.suspect else "cell"
    # Of ten thousand cells only those that stand out say who they are: the table names the others.
    hint = cell.hint if size > _SMALLEST_PX or cell.suspect or cell.state is not RankActivity.WAITS else ""
    canvas.rect((x, y, size - room, size - room), class_=class_, fill=fill(number), hint=hint)
    if size >= 20:
        words = sign or cell.label
        canvas.text((x + (size - room) / 2, y + size / 2 + 3.5), words, anchor="middle", class_="small on-cell")


def rank_legend() -> Markup:
    """Return the meaning of the colours and signs of the cells."""
    items = []
    for number, sign, words in STATES.values():
        swatch = element("rect", x=1, y=1, width=14, height=10, fill=fill(number))
        box = element("svg", swatch, width=16, height=12, aria_hidden="true")
        items.append(element("li", box, f"{sign} {words}".strip()))
    edge = element("rect", x=2, y=2, width=12, height=8, class_="plain odd")
    outline = element("svg", edge, width=16, height=12, aria_hidden="true")
    items.append(element("li", outline, "the verdict names it"))
    return element("ul", joined(items), class_="legend")
