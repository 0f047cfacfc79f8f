"""Writes one incident as an HTML page: at the top what on-call engineers read first, the evidence below."""

from __future__ import annotations

from slurm_robust.localize.stacks.merge import render_tree
from slurm_robust.report.pages.document import about_times, contents, document, doubts_box, number_tiles, table_box
from slurm_robust.report.pages.formats import moment
from slurm_robust.report.pages.incident_view import IncidentView
from slurm_robust.report.pages.markup import Markup, element, joined
from slurm_robust.report.pages.plots.drawn import NARROW_PX, WIDE_PX
from slurm_robust.report.pages.plots.flame import draw_flame, flame_legend
from slurm_robust.report.pages.plots.rank_cells import draw_ranks, rank_legend
from slurm_robust.report.pages.plots.waterfall import draw_waterfall
from slurm_robust.report.pages.view import FigureTable, TableColumn, Unit

_MAX_TREE_CHARS = 200_000


def incident_html(view: IncidentView) -> str:
    """Return the HTML page of the incident."""
    parts = [part for part in _sections(view) if part is not None]
    main = [
        element("p", view.headline, class_="headline"),
        number_tiles(view.numbers),
        doubts_box(view.doubts),
        contents([(key, title) for key, title, _ in parts]),
        *(_section(key, title, body) for key, title, body in parts),
    ]
    where = f"Cluster {view.cluster} · " if view.cluster else ""
    about = f"{where}job {view.job} · opened {moment(view.opened_at_s)} UTC"
    header = element(
        "header",
        element("h1", f"Incident {view.id}"),
        element("p", about, class_="about"),
        element("p", about_times(view.made_at_s, view.offset_s), class_="about"),
    )
    body = [header, element("main", joined(main), id="content", tabindex=-1)]
    return document(f"Incident {view.id} of job {view.job}", joined(body))


def _section(key: str, title: str, body: Markup) -> Markup:
    heading = element("h2", title, id=f"{key}-question")
    return element("section", heading, body, id=key, aria_labelledby=f"{key}-question")


def _sections(view: IncidentView) -> list[tuple[str, str, Markup] | None]:
    """Key, question and content, in the order in which an on-call asks."""
    return [
        ("what", "What happened?", _facts(view.facts)) if view.facts else None,
        ("plan", "What was decided, and why?", _facts(view.plan)) if view.plan else None,
        ("times", "How long did each stage take?", _times(view)) if view.stages else None,
        ("cause", "What broke, in the job's own words?", _facts(view.cause)) if view.cause else None,
        ("ranks", "What did each rank do?", _ranks(view)) if view.rows else None,
        ("stacks", "Where did the ranks stand?", _stacks(view)) if view.capture is not None else None,
        ("tests", "What did the tests of the nodes find?", _tables(view.tests, "tests")) if view.tests else None,
        ("actions", "What was done to Slurm?", table_box(view.actions, "actions")) if view.actions else None,
        ("signals", "What was seen?", table_box(view.signals, "signals")) if view.signals else None,
        ("story", "What is the whole story?", table_box(view.story, "story")) if view.story else None,
        ("files", "Which files are there?", _files(view)) if view.files or view.folder else None,
    ]


def _facts(pairs: tuple[tuple[str, str], ...]) -> Markup:
    shown = joined(joined([element("dt", name), element("dd", value)]) for name, value in pairs)
    return element("dl", shown, class_="facts")


def _both(wide: Markup, narrow: Markup) -> Markup:
    return joined([element("div", wide, class_="wide"), element("div", narrow, class_="narrow")])


def _times(view: IncidentView) -> Markup:
    wide, narrow = (draw_waterfall(view.stages, px, f"times-{px}") for px in (WIDE_PX, NARROW_PX))
    columns = (
        TableColumn("stage", "stage"),
        TableColumn("took_s", "took", Unit.SECONDS),
        TableColumn("until_s", "until", Unit.AT),
    )
    rows = tuple((stage.label, stage.end_s - stage.begin_s, stage.end_s) for stage in view.stages)
    table = FigureTable(f"From {moment(view.stages[0].begin_s)} on", columns, rows)
    figure = element("figure", _both(wide, narrow), aria_labelledby="times-question")
    return joined([figure, table_box(table, "times")])


def _ranks(view: IncidentView) -> Markup:
    wide, narrow = (draw_ranks(view.rows, px, f"ranks-{px}") for px in (WIDE_PX, NARROW_PX))
    told = element("p", view.rows_told, class_="axis")
    return element("figure", rank_legend(), told, _both(wide, narrow), aria_labelledby="ranks-question")


def _stacks(view: IncidentView) -> Markup:
    assert view.capture is not None
    wide, narrow = (draw_flame(view.capture, view.suspects, px, f"stacks-{px}") for px in (WIDE_PX, NARROW_PX))
    tree = render_tree(view.capture)
    cut = len(tree) > _MAX_TREE_CHARS
    lines = joined(tree[:_MAX_TREE_CHARS].splitlines())
    text = element("pre", lines, tabindex=0, role="region", aria_label="The merged stacks as text")
    more = element("p", "The rest is left out; srobust localize --stacks shows all.", class_="about") if cut else ""
    figure = element("figure", flame_legend(), _both(wide, narrow), class_="flame", aria_labelledby="stacks-question")
    return joined([figure, element("details", element("summary", "The same as text"), text, more)])


def _tables(tables: tuple[FigureTable, ...], name: str) -> Markup:
    return joined(table_box(table, f"{name}-{number}") for number, table in enumerate(tables))


def _files(view: IncidentView) -> Markup:
    where = element("p", "In ", element("code", view.folder), class_="about") if view.folder else Markup("")
    items = joined(
        element(
            "li", element("a", one.name, href=one.href), element("span", f" {one.size_bytes:,} bytes", class_="faint")
        )
        for one in view.files
    )
    return joined([where, element("ul", items, class_="files")])
