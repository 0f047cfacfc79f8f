"""Shows what broke, what it cost, on which nodes, and which actions were needless."""

from __future__ import annotations

from collections import Counter, defaultdict

from slurm_robust.core.text import shortened
from slurm_robust.diagnose.rulebook import shipped
from slurm_robust.report.facts import Facts
from slurm_robust.report.figures.all_figures import Figures
from slurm_robust.report.figures.failures import UNKNOWN, category_of, is_failure
from slurm_robust.report.figures.node_events import NodeHistory
from slurm_robust.report.lemons import LemonReport
from slurm_robust.report.pages.formats import count, share, shown
from slurm_robust.report.pages.sections.cut import MAX_PLOT_ROWS, cut_table, in_words
from slurm_robust.report.pages.sections.hours import hours_column, hours_unit
from slurm_robust.report.pages.view import (
    Cell,
    FigureTable,
    PartsBar,
    PartsPlot,
    PlotSeries,
    ReportSection,
    TableColumn,
    Unit,
)

BLAMES = (
    PlotSeries("node", "a node"),
    PlotSeries("shared", "what nodes share"),
    PlotSeries("program", "the program"),
    PlotSeries("either", "node or program"),
    PlotSeries("nobody", "nobody: it was wanted"),
    PlotSeries("unknown", "not known"),
)
KINDS = (
    PlotSeries("node", "incidents"),
    PlotSeries("detection", "drains"),
    PlotSeries("tests", "failed tests"),
    PlotSeries("shared", "strikes"),
    PlotSeries("checkpoint", "repairs"),
)
_EVENTS = ("incident", "drain", "failed test", "strike", "repair")


def causes_section(facts: Facts, figures: Figures) -> ReportSection:
    """Failures by what broke, coloured by whose fault it was, with their cost."""
    question = "What broke, and what did it cost?"
    blames: dict[str, Counter[str]] = defaultdict(Counter)
    known = {one.key for one in BLAMES}
    for incident in facts.incidents:
        if is_failure(incident):
            blames[category_of(incident)][incident.blame if incident.blame in known else "unknown"] += 1
    costs = figures.costs
    unit = hours_unit(costs.unit)
    meanings = {name: kind.meaning for name, kind in shipped().categories.items()}
    rows: list[tuple[Cell, ...]] = [
        (row.name, row.failures, row.hours, meanings.get(row.name, "")) for row in costs.by_category
    ]
    columns = (
        TableColumn("category", "what broke"),
        TableColumn("failures", "failures", Unit.COUNT),
        hours_column("hours", "lost", costs.unit),
        TableColumn("meaning", "what that means"),
    )
    table = cut_table("Failures by what broke, the dearest first", columns, rows, "kinds") if rows else None
    if not blames:
        return ReportSection("causes", question, "Nothing broke in this time.", None, table)
    order = sorted(blames, key=lambda name: (-blames[name].total(), name))
    hours = {row.name: row.hours for row in costs.by_category}
    bars = tuple(
        PartsBar(
            in_words(name),
            f"{blames[name].total():,}" + (f", {shown(hours[name], unit)}" if hours.get(name) is not None else ""),
            tuple(float(blames[name][series.key]) for series in BLAMES),
        )
        for name in order[:MAX_PLOT_ROWS]
    )
    failures = sum(counts.total() for counts in blames.values())
    most = blames[order[0]].total()
    cost = f" {'It' if failures == 1 else 'They'} cost {shown(costs.total_hours, unit)}." if costs.total_hours else ""
    of_them = f"{share(most / failures)} of them" if most < failures else "all"
    first = f"The most frequent is {in_words(order[0])}: {of_them}."
    if order[0] == UNKNOWN:
        first = f"Of {of_them} it is not known what broke." if most < failures else "What broke is not known."
    answer = f"{count(failures, 'failure').capitalize()}. {first}{cost}"
    plot = PartsPlot(BLAMES, bars, Unit.COUNT, axis_title="Failures by what broke; colours: whose fault it is")
    notes = (
        "What broke is read from the job's own last lines, else from the drain that followed; else it is not known.",
    )
    return ReportSection("causes", question, answer, plot, table, notes)


def nodes_section(figures: Figures, lemons: LemonReport) -> ReportSection:
    """Return the section of nodes with the most findings, and of nodes that fail more often than chance explains."""
    question = "Which nodes made trouble?"
    nodes = sorted(figures.nodes, key=lambda one: (-one.counts.total(), one.node))
    if not nodes:
        return ReportSection("nodes", question, "Nothing was found on any node in this time.")
    bars = tuple(
        PartsBar(one.node, f"{one.counts.total():,}", tuple(float(one.counts[kind]) for kind in _EVENTS))
        for one in nodes[:MAX_PLOT_ROWS]
    )
    columns = (
        TableColumn("node", "node"),
        *(
            TableColumn(f"{kind.replace(' ', '_')}s", series.label, Unit.COUNT)
            for kind, series in zip(_EVENTS, KINDS, strict=True)
        ),
        TableColumn("reverted", "reverted drains", Unit.COUNT),
        TableColumn("lemon", "fails too often"),
        TableColumn("out_hours", "hours out", Unit.HOURS),
        TableColumn("found", "found"),
    )
    named = {lemon.node: "maybe" for lemon in lemons.watched} | {lemon.node: "yes" for lemon in lemons.lemons}
    rows: list[tuple[Cell, ...]] = [
        (
            one.node,
            *(one.counts[kind] for kind in _EVENTS),
            one.reverted,
            named.get(one.node, ""),
            one.out_hours,
            _found(one),
        )
        for one in nodes
    ]
    out, worst = sum(one.is_out for one in nodes), shortened(nodes[0].node, 60)
    answer = f"Something was found on {count(len(nodes), 'node')}; {worst} leads with {nodes[0].counts.total():,}"
    answer += f". Out of service now: {out:,}." if out else ". All are back in service."
    if len(nodes) > MAX_PLOT_ROWS:
        answer += f" The plot shows the first {MAX_PLOT_ROWS}."
    plot = PartsPlot(KINDS, bars, Unit.COUNT, axis_title="What was found on each node")
    notes = (lemons.sentence, "More of nodes that fail more often than chance explains: srobust report lemons.")
    return ReportSection(
        "nodes", question, answer, plot, cut_table("Nodes, the worst first", columns, rows, "nodes"), notes
    )


def _found(one: NodeHistory) -> str:
    xids = [f"XID {number} × {times}" for number, times in one.xids.most_common(4)]
    return ", ".join([*xids, *(f"{in_words(name)} × {times}" for name, times in one.categories.most_common(3))])


def alarms_section(figures: Figures) -> ReportSection:
    """Return the section of needless actions and alarms."""
    found = figures.false_alarms
    rows: tuple[tuple[Cell, ...], ...] = (
        ("incidents", found.incidents),
        ("false alarms: the training went on by itself", found.false_alarms),
        ("drains", found.drains),
        ("drains that are still open", found.open_drains),
        ("reverted drains: the node was fit, or a person took it back within the hour", found.reverted_drains),
        ("suspects that passed their check", found.cleared_suspects),
        ("nodes that failed a test", found.failed_tests),
    )
    said = []
    if found.false_share is not None:
        said.append(f"{found.false_alarms:,} of {count(found.incidents, 'incident')} came to nothing")
    if found.reverted_share is not None:
        ended = count(found.ended_drains, "drain that has ended", "drains that have ended")
        said.append(f"{found.reverted_drains:,} of {ended} hit a fit node or was taken back within the hour")
    answer = "; ".join(said) + "." if said else "No incident and no drain: nothing was done for nothing."
    columns = (TableColumn("what", "what"), TableColumn("times", "times", Unit.COUNT))
    return ReportSection("alarms", "What was done for nothing?", answer, None, FigureTable("Counts", columns, rows))
