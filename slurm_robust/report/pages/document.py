"""Writes what every page has: its head with style and script, the frame around its sections, tables, and numbers.

The page says of itself that nothing may be loaded and that no script but its own may run (a content security policy
with the digests of both), so that even a fault in escaping would run nothing.
"""

from __future__ import annotations

import base64
import hashlib
from functools import lru_cache
from importlib import resources

from slurm_robust.report.pages.formats import in_cell, moment, offset, shown
from slurm_robust.report.pages.markup import Markup, element, joined
from slurm_robust.report.pages.plots.palette import patterns
from slurm_robust.report.pages.view import BigNumber, Cell, FigureTable, TableColumn, Unit

_WORDS = frozenset({Unit.TEXT})
_APART = frozenset({Unit.SHARE, Unit.HOURS, Unit.GPU_HOURS, Unit.NODE_HOURS})
_SHORT_CHARS, _LONG_CHARS = 24, 50
MAX_DOUBTS = 20


@lru_cache(maxsize=2)
def _resource(name: str) -> str:
    return resources.files("slurm_robust.report.pages").joinpath(name).read_text(encoding="utf-8")


def content_policy() -> str:
    """Return the policy that the page states; a server with a header of its own needs the same digests in it."""
    style, script = (
        base64.b64encode(hashlib.sha256(_resource(name).encode()).digest()).decode()
        for name in ("style.css", "script.js")
    )
    own = f"style-src 'sha256-{style}'; script-src 'sha256-{script}'"
    return f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'"


def document(title: str, body: Markup) -> str:
    """Return a whole HTML document."""
    policy = {"http-equiv": "Content-Security-Policy", "content": content_policy()}
    head = [
        element("meta", charset="utf-8"),
        element("meta", **policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="robots", content="noindex"),
        element("title", title),
        Markup(f"<style>{_resource('style.css')}</style>"),
    ]
    skip = element("a", "To the content", href="#content", class_="skip")
    script = Markup(f"<script>{_resource('script.js')}</script>")
    sheet = element("div", body, class_="sheet")
    whole = element(
        "html", element("head", joined(head)), element("body", joined([skip, patterns(), sheet, script])), lang="en"
    )
    return f"<!DOCTYPE html>\n{whole}\n"


def about_times(made_at_s: float, offset_s: int) -> str:
    """Return a sentence on the clock of the page's times."""
    local = "" if offset_s == 0 else f" The machine that made this page is at {offset(offset_s)}."
    return f"All times are UTC.{local} Made {moment(made_at_s)}."


def number_tiles(numbers: tuple[BigNumber, ...]) -> Markup:
    """Return the tiles of the big numbers."""
    tiles = []
    for one in numbers:
        said, unit = shown(one.value, one.unit), ""
        if one.unit in _APART:
            said, _, unit = said.partition(" ")
        value = element("dd", said, element("span", f" {unit}", class_="unit") if unit else Markup(""), class_="value")
        note = element("dd", one.note, class_="note") if one.note else Markup("")
        tiles.append(element("div", element("dt", one.label), value, note))
    return element("dl", joined(tiles), class_="numbers")


def contents(entries: list[tuple[str, str]]) -> Markup:
    """Links to the sections: key and title of each."""
    items = joined(element("li", element("a", title, href=f"#{key}")) for key, title in entries)
    heading = element("h2", "On this page", id="contents")
    return element("nav", heading, element("ol", items), aria_labelledby="contents")


def doubts_box(doubts: tuple[str, ...]) -> Markup:
    """Return a box of sentences about what may not be true on this page; empty if there are no doubts."""
    if not doubts:
        return Markup("")
    items = [element("li", one) for one in doubts[:MAX_DOUBTS]]
    if len(doubts) > MAX_DOUBTS:
        items.append(element("li", f"And {len(doubts) - MAX_DOUBTS:,} more of these; --json has all."))
    heading = element("h2", "What this page cannot say, or not for sure", id="doubts")
    return element("aside", heading, element("ul", joined(items)), class_="doubts", aria_labelledby="doubts")


def table_box(table: FigureTable, name: str) -> Markup:
    """Return a table that scrolls in its own box, reachable by keyboard; rows left out are counted below it."""
    if not table.rows:
        return element("p", f"{table.caption}: nothing to show.", class_="about")
    head = joined((element("th", c.title, scope="col", class_=_class(c, "")) for c in table.columns), "")
    rows = (
        element("tr", joined((_cell(v, c) for v, c in zip(row, table.columns, strict=True)), "")) for row in table.rows
    )
    caption = element("caption", element("span", table.caption), id=f"{name}-caption")
    whole = element("table", caption, element("thead", element("tr", head)), element("tbody", joined(rows)))
    box = element("div", whole, class_="table", role="region", tabindex=0, aria_labelledby=f"{name}-caption")
    return joined([box, element("p", table.left_out, class_="about")] if table.left_out else [box])


def _cell(value: Cell, column: TableColumn) -> Markup:
    said = in_cell(value, column.unit)
    if column.unit in _WORDS or isinstance(value, str):
        return element("td", said, class_=_class(column, said))
    # Copying and sorting use the number itself, not the shown text.
    return element("td", said, class_="n", data_v="" if value is None else repr(value))


def _class(column: TableColumn, said: str) -> str | None:
    if column.unit not in _WORDS:
        return "n"
    return "long text" if len(said) > _LONG_CHARS else "text" if len(said) > _SHORT_CHARS else "short"
