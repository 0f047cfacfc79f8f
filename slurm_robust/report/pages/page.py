"""Writes a report as one HTML page that needs nothing else: no network, and no script to be read."""

from __future__ import annotations

from slurm_robust.report.pages.document import about_times, contents, document, doubts_box, number_tiles, table_box
from slurm_robust.report.pages.formats import moment
from slurm_robust.report.pages.markup import Markup, element, joined
from slurm_robust.report.pages.plots.drawn import drawn
from slurm_robust.report.pages.view import ReportSection, ReportView


def html(view: ReportView) -> str:
    """Return the HTML page of the report."""
    main = [
        number_tiles(view.numbers),
        doubts_box(view.doubts),
        contents([(one.key, one.question) for one in view.sections]),
        *map(section, view.sections),
    ]
    body = [_header(view), element("main", joined(main), id="content", tabindex=-1), _footer()]
    return document(f"{view.title} {period(view)}", joined(body))


def period(view: ReportView) -> str:
    """Return the period of the report as text."""
    return f"{moment(view.from_s, seconds=False)} to {moment(view.to_s, seconds=False)} UTC"


def section(one: ReportSection) -> Markup:
    """Question, answer, plot, table, notes."""
    parts = [element("h2", one.question, id=f"{one.key}-question"), element("p", one.answer, class_="answer")]
    if one.plot is not None:
        parts.append(element("figure", drawn(one.plot, one.key, one.question), aria_labelledby=f"{one.key}-question"))
    if one.table is not None:
        parts.append(table_box(one.table, one.key))
    if one.notes:
        parts.append(element("ul", joined(element("li", note) for note in one.notes), class_="notes"))
    return element("section", joined(parts), id=one.key, aria_labelledby=f"{one.key}-question")


def _header(view: ReportView) -> Markup:
    about = [f"Cluster {view.cluster}" if view.cluster else "", period(view)]
    lines = [element("p", " · ".join(part for part in about if part), class_="about")]
    lines.append(element("p", about_times(view.made_at_s, view.offset_s), class_="about"))
    return element("header", element("h1", view.title), joined(lines))


def _footer() -> Markup:
    told = "Made by srobust report. The same as JSON: srobust report --json; as Markdown: srobust report --markdown."
    return element("footer", element("p", told))
