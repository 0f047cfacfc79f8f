"""Shows how long a job runs between failures, and how fast it is back."""

from __future__ import annotations

from slurm_robust.core.text import duration
from slurm_robust.policy.cluster.failure_rate import FailureRate
from slurm_robust.report.figures.all_figures import Figures
from slurm_robust.report.figures.reliability import ReliabilityRow
from slurm_robust.report.pages.formats import count, shown
from slurm_robust.report.pages.view import (
    Cell,
    FigureTable,
    IntervalPoint,
    IntervalsPlot,
    ReportSection,
    TableColumn,
    Unit,
)

_HOUR_S = 3600.0
COLUMNS = (
    TableColumn("nodes", "nodes of the job"),
    TableColumn("attempts", "attempts", Unit.COUNT),
    TableColumn("hours", "hours run", Unit.HOURS),
    TableColumn("failures", "failures", Unit.COUNT),
    TableColumn("mttf_h", "MTTF, hours", Unit.HOURS),
    TableColumn("mttf_low_h", "at least", Unit.HOURS),
    TableColumn("mttf_high_h", "at most", Unit.HOURS),
    TableColumn("per_node_day", "failures per node and day", Unit.NUMBER),
    TableColumn("infrastructure", "of hardware, network, storage", Unit.COUNT),
    TableColumn("back_median_s", "back after (median)", Unit.SECONDS),
    TableColumn("back_p90_s", "back after (90 %)", Unit.SECONDS),
)


def reliability_section(figures: Figures) -> ReportSection:
    """MTTF by job size with its interval, and MTTR beside it in the table."""
    question = "How long does a job run between failures?"
    found = figures.reliability
    if not found.rows:
        return ReportSection("reliability", question, "No supervised job ran in this time, so nobody can say.")
    points = tuple(_point(row) for row in found.rows)
    plot = IntervalsPlot(
        points, Unit.HOURS, "Mean time to failure in hours, with its 95 % interval", "nodes of the job"
    )
    rows: list[tuple[Cell, ...]] = [_cells(row) for row in (*found.rows, found.total)]
    table = FigureTable(
        "By job size; the interval is exact for failures that do not cause one another", COLUMNS, tuple(rows)
    )
    notes = ["With no failure, only a lower bound is known: the arrow."]
    if found.failures_without_size:
        notes.append(f"{count(found.failures_without_size, 'failure')} of jobs of unknown size: only in the sum.")
    return ReportSection("reliability", question, _answer(found.total), plot, table, tuple(notes))


def _answer(total: ReliabilityRow) -> str:
    rate, back = total.by_hours, total.back_s.median
    if rate.mean_time is not None:
        said = f"{duration(rate.mean_time * _HOUR_S)} on average ({_between(rate)})"
    elif rate.mean_time_low is not None:
        said = f"No failure was seen; it is longer than {duration(rate.mean_time_low * _HOUR_S)} with 95 % confidence"
    else:
        return "Too little ran to say anything."
    return f"{said}; it is back after {shown(back, Unit.SECONDS)} in the median." if back is not None else f"{said}."


def _between(rate: FailureRate) -> str:
    low, high = rate.mean_time_low, rate.mean_time_high
    least = duration(low * _HOUR_S) if low is not None else "0 s"
    return f"{least} to {duration(high * _HOUR_S) if high is not None else 'any time'} with 95 % confidence"


def _point(row: ReliabilityRow) -> IntervalPoint:
    rate = row.by_hours
    label = row.size.label if row.size is not None else "all"
    detail = f"{count(rate.failures, 'failure')} in {shown(rate.exposure, Unit.HOURS)}"
    return IntervalPoint(label, rate.mean_time_low, rate.mean_time, rate.mean_time_high, detail)


def _cells(row: ReliabilityRow) -> tuple[Cell, ...]:
    rate = row.by_hours
    return (
        *(row.size.label if row.size is not None else "all", row.attempts, rate.exposure, rate.failures),
        *(rate.mean_time, rate.mean_time_low, rate.mean_time_high, row.by_node_days.rate, row.infrastructure.failures),
        *(row.back_s.median, row.back_s.p90),
    )
