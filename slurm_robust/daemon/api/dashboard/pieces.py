"""Makes small pieces of pages that several pages have: times, links to incidents, commands to type. Pure.

No piece depends on the time now: the browser's script writes ages, and a board changes only if the state does.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from slurm_robust.core.text import duration
from slurm_robust.daemon.api.dashboard.tree import Element, Piece, element

DASH = "–"
Row = Mapping[str, Any]


def local_time(at_s: float) -> str:
    """Return a time as `02:11:05` in the daemon's own time zone, as its log has it."""
    return time.strftime("%H:%M:%S", time.localtime(at_s))


def local_date(at_s: float) -> str:
    """Return a time as `2026-01-31 02:11:05 +0100`."""
    return time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(at_s))


def moment(at_s: object) -> Element | str:
    """Return the time of day of a moment, with the date in the title; a dash if it is not known."""
    if not isinstance(at_s, int | float) or at_s <= 0:
        return DASH
    iso = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at_s))
    return element("time", local_time(at_s), datetime=iso, title=local_date(at_s))


def age(at_s: object) -> Element | str:
    """Return the age of a moment, which the browser's script updates; without scripts the time of day."""
    if not isinstance(at_s, int | float) or at_s <= 0:
        return ""
    # A screen reader would read it aloud each second.
    return element("span", local_time(at_s), class_="age", data_since=at_s, title=local_date(at_s), aria_hidden="true")


def with_command(sentence: str) -> list[Piece]:
    """Return a sentence with `: COMMAND` or `: once …, COMMAND` at its end as text and a command that a tap selects."""
    text, colon, command = sentence.rpartition(": ")
    condition, comma, rest = command.rpartition(", ")
    if not colon or len(rest) > 120:
        return [sentence]
    return [f"{text}: {condition}{comma}", element("code", rest, class_="command")]


def incident_link(incident: Row, *children: Piece) -> Element:
    """Return a link to an incident's own page."""
    return element("a", *children, href=f"/incidents/{quoted(incident.get('key', ''))}")


def row_id(kind: str, name: object) -> str:
    """Return an id in a page, for any text."""
    return f"{kind}-{quoted(name)}"


def quoted(text: object) -> str:
    """Return any text as a part of an address or an id."""
    return quote(str(text), safe="", errors="replace")


def percent(share: object) -> str:
    """Return a share between 0 and 1 as `97.3 %`; a dash if it is not known."""
    return f"{100 * share:.1f} %" if isinstance(share, int | float) else DASH


def seconds(value: object) -> str:
    """Return a duration; a dash if it is not known."""
    if not isinstance(value, int | float):
        return DASH
    return f"{value:.2f} s" if value < 10 else duration(value)


def cell(label: str, *children: Piece, class_: str | None = None, colspan: int | None = None) -> Element:
    """Return a cell of a table, which on a phone shows its column's name by itself."""
    return element("td", *children, role="cell", data_label=label or None, class_=class_, colspan=colspan)


def row(key: str, *cells: Element, class_: str | None = None) -> Element:
    """Return a row of a table."""
    return element("tr", *cells, id=key, role="row", class_=class_)


def nothing(text: str, columns: int) -> dict[str, Element]:
    """Return the only row of an empty table."""
    return {"nothing": note("nothing", columns, text)}


def note(key: str, columns: int, *children: Piece) -> Element:
    """Return a row of a table that holds a sentence over its whole width."""
    return element("tr", cell("", *children, class_="nothing", colspan=columns), role="row", data_key=key)
