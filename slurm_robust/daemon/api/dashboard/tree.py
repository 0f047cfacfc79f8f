"""Holds a piece of a page as a value, which becomes HTML for the first load and JSON for later changes.

Texts come from jobs and users. They are escaped here and nowhere else; the browser's script uses text nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any, NamedTuple

VOID = frozenset({"meta", "link", "br", "rect", "input"})


class Element(NamedTuple):
    """An HTML or SVG element."""

    tag: str
    attributes: tuple[tuple[str, str], ...]
    children: tuple[Element | str, ...]


Piece = Element | str | None


def element(tag: str, *children: Piece, **attributes: object) -> Element:
    """Return an element; `class_` is `class`, `data_at` is `data-at`. An attribute or child of None is left out."""
    return Element(
        tag,
        tuple((k.rstrip("_").replace("_", "-"), visible(str(v))) for k, v in attributes.items() if v is not None),
        tuple(visible(c) if isinstance(c, str) else c for c in children if c is not None),
    )


def visible(text: str) -> str:
    """Return text from outside in one line, with a mark for invisible characters: controls, changes of direction."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)


def html(piece: Element | str) -> str:
    """Return the piece as HTML, with all texts escaped."""
    if isinstance(piece, str):
        return escape(piece)
    attributes = "".join([f' {name}="{escape(value)}"' for name, value in piece.attributes])
    if piece.tag in VOID:
        return f"<{piece.tag}{attributes}>" if piece.tag != "rect" else f"<rect{attributes}/>"
    return f"<{piece.tag}{attributes}>{''.join([html(child) for child in piece.children])}</{piece.tag}>"


def wire(piece: Element | str) -> Any:
    """Return a piece as JSON: a text, or `[tag, {attribute: value}, child, …]`."""
    if isinstance(piece, str):
        return piece
    return [piece.tag, dict(piece.attributes), *[wire(child) for child in piece.children]]


@dataclass(frozen=True)
class Section:
    """A part of a page that changes: the rows of one container, by their names.

    Attributes:
        id: The container's id.
        rows: The pieces in it, in order.
        tag: The container's element.
        attributes: The container's own.
    """

    id: str
    rows: Mapping[str, Element]
    tag: str = "div"
    attributes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Board:
    """The changing content of one page, and the page's title with this content."""

    title: str
    sections: Mapping[str, Section]


def difference(old: Board, new: Board) -> dict[str, Any] | None:
    """Return the changes from `old` to `new` for a browser; None if the browser has to load the page anew.

    By section: `rows` has new and changed rows, and `order` the names of all rows if their order has changed.
    """
    if _shape(old) != _shape(new):
        return None
    changes: dict[str, Any] = {}
    for name, section in new.sections.items():
        was, now = old.sections[name].rows, section.rows
        if was is now:
            continue
        rows = {key: wire(row) for key, row in now.items() if (known := was.get(key)) is not row and known != row}
        change: dict[str, Any] = {"rows": rows} if rows else {}
        if len(was) != len(now) or list(was) != list(now):
            change["order"] = list(now)
        if change:
            changes[name] = change
    return changes


def everything(board: Board) -> dict[str, Any]:
    """Return all rows, in the form of `difference`."""
    return {
        name: {"rows": {key: wire(row) for key, row in section.rows.items()}, "order": list(section.rows)}
        for name, section in board.sections.items()
    }


def _shape(board: Board) -> list[tuple[str, str, Mapping[str, str]]]:
    return [(s.id, s.tag, s.attributes) for s in board.sections.values()]
