"""Shows how much of the time training moved forward, and what the rest went into."""

from __future__ import annotations

from slurm_robust.core.training_time import Spent
from slurm_robust.report.facts import Facts
from slurm_robust.report.figures.all_figures import Figures
from slurm_robust.report.figures.ettr import LOST, ettr_series
from slurm_robust.report.figures.trainings import GPU
from slurm_robust.report.pages.formats import count, share, shown
from slurm_robust.report.pages.sections.cut import axis_from_s, cut_table
from slurm_robust.report.pages.sections.hours import hours_column
from slurm_robust.report.pages.view import (
    Cell,
    FigureTable,
    PlotSeries,
    ReportSection,
    ShareBin,
    SharesPlot,
    TableColumn,
    Unit,
)

WORDS = {
    Spent.PRODUCTIVE: "new steps",
    Spent.QUEUE: "queue",
    Spent.START: "start",
    Spent.DETECTION: "detection",
    Spent.DIAGNOSIS: "diagnosis",
    Spent.RESTART: "restart",
    Spent.RECOMPUTATION: "recomputation",
    Spent.CHECKPOINT: "checkpoint stall",
    Spent.SLOW: "slow steps",
    Spent.UNKNOWN: "nobody saw",
}
ORDER = (*LOST, Spent.CHECKPOINT, Spent.SLOW, Spent.START, Spent.QUEUE, Spent.UNKNOWN)
"""The losses from the top of the plot: failures first."""
_BINS, _LEAST_BIN_S = 120, 5.0
_HOUR_S = 3600.0


def time_section(facts: Facts, figures: Figures) -> ReportSection:
    """ETTR over time with the lost shares, and the table of where all time went."""
    question = "How much of the time did training move forward?"
    time, shares = figures.time, figures.time.shares
    if shares is None:
        return ReportSection("time", question, "No supervised training ran in this time, so there is no ETTR.")
    lost = [(shares.get(what, 0.0), what) for what in ORDER]
    most, what = max(lost)
    if time.ettr is None:
        answer = "No training reported its steps, so nobody can say; progress.step in the training loop reports them."
    else:
        answer = f"{share(time.ettr)} of the time made new steps (ETTR). "
        answer += (
            f"Of the rest, {WORDS[what]} took the most: {share(most)} of all." if most > 0 else "Nothing was lost."
        )
    columns = (
        TableColumn("spent", "time went into"),
        TableColumn("share", "share", Unit.SHARE),
        hours_column("hours", "in", time.unit),
    )
    rows: list[tuple[Cell, ...]] = [
        (WORDS[what], shares.get(what, 0.0), time.seconds.get(what, 0.0) / _HOUR_S)
        for what in (Spent.PRODUCTIVE, *ORDER)
    ]
    table = FigureTable("Where the time of all trainings went", columns, tuple(rows))
    return ReportSection("time", question, answer, _plot(facts, figures), table, _notes(facts, figures))


def _plot(facts: Facts, figures: Figures) -> SharesPlot | None:
    """Averages over stretches that lie one beside the other, so that no second is left out or counted twice."""
    from_s = axis_from_s(facts, (t.spans[0].begin_at_s for t in figures.trainings))
    to_s = min(facts.to_s, facts.read_at_s)
    if to_s <= from_s:
        return None
    bins = max(1, min(_BINS, int((to_s - from_s) / _LEAST_BIN_S)))
    width_s = (to_s - from_s) / bins
    series = ettr_series(figures.trainings, from_s, to_s, width_s=width_s, points=bins)
    shown_bins = tuple(
        ShareBin(p.at_s - width_s, p.at_s, tuple(p.shares.get(what, 0.0) for what in ORDER) if p.shares else ())
        for p in series
    )
    return SharesPlot(from_s, facts.to_s, tuple(PlotSeries(what.value, WORDS[what]) for what in ORDER), shown_bins)


def _notes(facts: Facts, figures: Figures) -> tuple[str, ...]:
    notes = ["ETTR is the time that made new steps, of all time since the job could have started, weighed by GPUs."]
    bare = sum(not training.gpus for training in figures.trainings)
    if bare and figures.time.unit == GPU:
        notes.append(f"{count(bare, 'training')} without GPUs, or of which nobody knows how many: no weight here.")
    if (at_most := figures.time.at_most) is not None and at_most - (figures.time.ettr or 0.0) > 0.001:
        notes.append(f"Had all time that nobody saw made new steps, it would be {share(at_most)}.")
    begun_s = min((t.spans[0].begin_at_s for t in figures.trainings if t.spans), default=0.0)
    # What follows the first start of all is not a bad hour, but a short one.
    whole = max(facts.from_s, begun_s) + _HOUR_S
    hours = [p.sliding for p in figures.series if p.sliding is not None and p.at_s >= whole]
    if hours:
        notes.append(f"The worst single hour had an ETTR of {share(min(hours))}.")
    good = figures.goodput
    if good.of_capacity is not None:
        notes.append(f"{share(good.of_capacity)} of all that the cluster had became new steps (goodput).")
    if good.utilisation is not None:
        notes.append(f"Jobs used {share(good.utilisation)} of the cluster, by Slurm's accounting.")
    return tuple(notes)


def expected_section(figures: Figures) -> ReportSection:
    """Return the section of the ETTR that a formula predicts from measured rates, beside the measured one."""
    question = "Is the ETTR what the failure rate lets one expect?"
    rows: list[tuple[Cell, ...]] = []
    for row in sorted(figures.expected, key=lambda one: -one.prediction.nodes):
        said = row.prediction
        best_s = said.best_interval_s
        rows.append(
            (
                row.training.job,
                row.training.name,
                said.nodes,
                said.expected,
                said.low,
                said.high,
                row.alike,
                best_s,
                said.why,
            )
        )
    columns = (
        TableColumn("job", "job"),
        TableColumn("name", "name"),
        TableColumn("nodes", "nodes", Unit.COUNT),
        TableColumn("expected", "expected", Unit.SHARE),
        TableColumn("low", "at least", Unit.SHARE),
        TableColumn("high", "at most", Unit.SHARE),
        TableColumn("measured", "measured", Unit.SHARE),
        TableColumn("best_interval_s", "best between checkpoints", Unit.SECONDS),
        TableColumn("why", "remark"),
    )
    known = [(row.alike, row.prediction) for row in figures.expected if row.prediction.expected is not None]
    inside = sum(p.low is not None and m is not None and p.low <= m <= (p.high or 1.0) for m, p in known)
    if not known:
        why = next((row.prediction.why for row in figures.expected if row.prediction.why), "No training ran.")
        answer = why
    else:
        answer = (
            f"Measured within the bounds that the failure rate allows: {inside:,} of {count(len(known), 'training')}."
        )
    symbols = figures.symbols
    measured = f"Measured: r = {_rate(symbols.failures.rate)}, u = {shown(symbols.restart_s, Unit.SECONDS)}, "
    measured += f"Δ = {shown(symbols.interval_s, Unit.SECONDS)}, w = {shown(symbols.stall_s, Unit.SECONDS)}."
    formula = (
        "E[ETTR] ≈ (1 − N·r·(u + Δ/2)) / (1 + w/Δ), with N nodes. The measured ratio is without queue, first start, "
    )
    notes = [f"{formula}slow steps and what nobody saw, as the formula has it.", measured]
    table = cut_table("Expected and measured, the largest first", columns, rows, "trainings") if rows else None
    return ReportSection("expected", question, answer, None, table, tuple(notes))


def _rate(rate: float | None) -> str:
    return "–" if rate is None else f"{rate:.4g} failures per node and day"
