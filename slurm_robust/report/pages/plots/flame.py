"""Draws the merged stacks as a flame graph that follows dark and light, with the ranks of the verdict outlined."""

from __future__ import annotations

from collections.abc import Set

from slurm_robust.localize.evidence import Capture
from slurm_robust.localize.ranks import name as ranks_named
from slurm_robust.localize.stacks.flame_graph import FlameBox, flame_boxes
from slurm_robust.localize.stacks.merge import merged
from slurm_robust.report.pages.markup import Markup, element, joined
from slurm_robust.report.pages.plots.canvas import Canvas, fitted

_ROW_PX, _CHAR_PX = 19, 7.3
MAX_BOXES = 3000
"""The most boxes of one tree, the widest first: more cannot be told apart, and would make a page of many MB."""
MAX_DEPTH = 150
MAX_NAMED = 8
_WORDS_PX = 6 * _CHAR_PX
_HEAT = 4


def draw_flame(capture: Capture, suspects: Set[int], width: int, name: str) -> Markup:
    """Return a picture for each kind of process: callers above their callees; the width is the number of ranks."""
    parts = []
    for number, (role, root) in enumerate(merged(capture)):
        caption = f"{role.value} processes of {ranks_named(root.ranks)}"
        parts.append(element("p", caption, class_="axis"))
        boxes = flame_boxes(root, width)
        parts.append(_tree(boxes, suspects, width, f"{name}-{number}"))
        parts += [element("p", words, class_="axis") for words in _narrow(boxes, suspects)]
    parts += [element("p", f"{node}: no answer", class_="axis") for node in capture.missing_nodes[:50]]
    return joined(parts)


def _narrow(boxes: list[FlameBox], suspects: Set[int]) -> list[str]:
    """Return the innermost function of each rank of the verdict whose box is too narrow for words."""
    innermost: dict[frozenset[int], FlameBox] = {}
    for box in boxes:
        if box.ranks and box.ranks <= suspects and box.width_px <= _WORDS_PX:
            innermost[frozenset(box.ranks)] = box  # callers come before what they call
    found = [f"▶ {ranks_named(ranks)}: {box.step}" for ranks, box in innermost.items()]
    return found[:MAX_NAMED]


def _tree(boxes: list[FlameBox], suspects: Set[int], width: int, name: str) -> Markup:
    shown = [box for box in boxes if box.depth < MAX_DEPTH]
    if len(shown) > MAX_BOXES:
        shown = sorted(shown, key=lambda box: -box.width_px)[:MAX_BOXES]
    said = f"{len(shown)} functions, callers above what they call; the text below has the same."
    canvas = Canvas(width, name=name, title="Where the ranks stood", description=said)
    for box in sorted(shown, key=lambda box: box.depth):
        _box(canvas, box, suspects)
    bottom = (max((box.depth for box in shown), default=-1) + 1) * _ROW_PX
    if len(shown) < len(boxes):
        canvas.text(
            (0, bottom + 14), fitted(f"{len(boxes) - len(shown)} functions are left out", width), class_="faint"
        )
        bottom += _ROW_PX
    return canvas.render(bottom + 4)


def _box(canvas: Canvas, box: FlameBox, suspects: Set[int]) -> None:
    odd = bool(box.ranks) and bool(suspects) and box.ranks <= suspects
    top = box.depth * _ROW_PX + 1
    warmth = 0 if box.of_ranks == 0 else round((1 - len(box.ranks) / box.of_ranks) * _HEAT)
    class_ = "cool" if box.communicates else f"heat-{warmth}"
    inner = max(box.width_px - 0.6, 0.4)
    canvas.rect((box.left_px, top, inner, _ROW_PX - 2), class_=f"{class_} odd" if odd else class_, hint=box.caption)
    if box.width_px > _WORDS_PX:
        label = f"▶ {box.step}" if odd else box.step
        canvas.text((box.left_px + 4, top + 12.5), fitted(label, box.width_px - 8, _CHAR_PX), class_="on")


def flame_legend() -> Markup:
    """Return the meaning of the colours of a flame graph."""
    items = [
        ("cool", "waits for other ranks"),
        ("heat-0", "all ranks are in it"),
        (f"heat-{_HEAT}", "few ranks are in it"),
        ("plain odd", "▶ ranks that the verdict names"),
    ]
    swatches = (
        element(
            "svg", element("rect", x=1, y=1, width=14, height=10, class_=key), width=16, height=12, aria_hidden="true"
        )
        for key, _ in items
    )
    whole = joined(element("li", swatch, words) for swatch, (_, words) in zip(swatches, items, strict=True))
    return element("ul", whole, class_="legend flame")
