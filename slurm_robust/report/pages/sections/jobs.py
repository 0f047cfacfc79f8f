"""Shows what ran on the cluster, and how that compares with published figures."""

from __future__ import annotations

from slurm_robust.report.characterise.characterisation import Characterisation
from slurm_robust.report.characterise.job_groups import JobGroup
from slurm_robust.report.characterise.published import PUBLISHED
from slurm_robust.report.figures.all_figures import Figures
from slurm_robust.report.pages.formats import count, grouped, offset, share
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

_WORDS = {
    "failed_share": "jobs with GPUs that failed or ran out of time",
    "infrastructure_share_of_failures": "failures of infrastructure, of all failures",
    "infrastructure_share_of_lost_gpu_time": "their share of the GPU time that was lost",
    "failures_per_1000_node_days": "failures of infrastructure in 1,000 node-days",
    "ettr": "ETTR",
}


def jobs_section(found: Characterisation) -> ReportSection:
    """Return the section of all jobs by Slurm's accounting: by type, state and size."""
    question = "What ran on the cluster?"
    if not found.runs:
        return ReportSection("jobs", question, "Slurm's accounting has no job of this time, or was not read.")
    columns = (
        TableColumn("by", "by"),
        TableColumn("name", "group"),
        TableColumn("runs", "runs", Unit.COUNT),
        TableColumn("share", "of all runs", Unit.SHARE),
        hours_column("hours", "used", found.unit),
        TableColumn("gpu_share", "of GPU time", Unit.SHARE),
        TableColumn("waited_median_s", "waited (median)", Unit.SECONDS),
        TableColumn("waited_p90_s", "waited (90 %)", Unit.SECONDS),
        TableColumn("ran_median_s", "ran (median)", Unit.SECONDS),
    )
    groups = (("type", found.by_type), ("state", found.by_state), (f"{found.unit}s", found.by_size))
    rows = [_cells(by, group) for by, members in groups for group in members]
    unit = hours_unit(found.unit)
    bars = tuple(
        PartsBar(in_words(group.name), count(group.runs, "run"), (group.gpu_hours,))
        for group in sorted(found.by_type, key=lambda one: (-one.gpu_hours, one.name))[:MAX_PLOT_ROWS]
    )
    title = f"{'GPU' if unit is Unit.GPU_HOURS else 'Node'} hours by type; the type is read from the job's name"
    plot = PartsPlot((PlotSeries("running", "used"),), bars, Unit.COUNT, axis_title=title)
    failed = f" {share(found.failed_share)} of those that have ended failed." if found.failed_share is not None else ""
    answer = f"{count(found.runs, 'run').capitalize()} of {count(found.jobs, 'job')}.{failed}"
    notes = [found.sentence] if found.sentence else []
    if found.odd:
        notes.append(f"{count(found.odd, 'run')} with times that cannot be true: counted, without their time.")
    return ReportSection("jobs", question, answer, plot, cut_table("Runs", columns, rows, "groups"), tuple(notes))


def _cells(by: str, group: JobGroup) -> tuple[Cell, ...]:
    return (
        *(by, group.name, group.runs, group.share, group.gpu_hours, group.gpu_share),
        *(group.waited_s.median, group.waited_s.p90, group.ran_s.median),
    )


def hours_section(found: Characterisation, offset_s: int) -> ReportSection:
    """Return the section of the cluster's use over the hours of the day, in local time."""
    question = "When is the cluster used?"
    what = "GPUs" if found.unit == "gpu" else "nodes"
    known = [(hour.in_use, hour.hour) for hour in found.hours if hour.in_use is not None]
    if not found.runs or not known:
        return ReportSection("hours", question, "Slurm's accounting has no job of this time, or was not read.")
    (most, busiest), (least, quietest) = max(known), min(known)
    zone = offset(offset_s) if offset_s else "UTC"
    answer = (
        f"Most from {busiest}:00 on ({grouped(most)} {what} in the mean), "
        f"least from {quietest}:00 on ({grouped(least)})."
        if most > 0
        else f"No {what} were in use."
    )
    columns = (
        TableColumn("hour", "from (hour)", Unit.COUNT),
        TableColumn("in_use", f"{what} in use (mean)", Unit.NUMBER),
        TableColumn("submitted", "jobs submitted", Unit.COUNT),
        TableColumn("started", "runs started", Unit.COUNT),
    )
    rows = tuple((hour.hour, hour.in_use, hour.submitted, hour.started) for hour in found.hours)
    # An hour that the report's time does not have is not one in which nothing was in use.
    bars = tuple(
        PartsBar(f"{hour.hour}:00", count(hour.submitted, "job submitted", "jobs submitted"), (hour.in_use,))
        for hour in found.hours
        if hour.in_use is not None
    )
    title = f"{what} in use, the mean of each hour of the day ({zone})"
    plot = PartsPlot((PlotSeries("running", "in use"),), bars, Unit.COUNT, axis_title=title)
    return ReportSection("hours", question, answer, plot, FigureTable(f"Hours of the day, {zone}", columns, rows))


def compared_section(found: Characterisation, figures: Figures) -> ReportSection:
    """Return the section of the site's own figures beside published figures."""
    rate = figures.reliability.total.infrastructure.rate
    own: dict[str, float | None] = {
        "failed_share": found.failed_of_gpu_runs,
        "infrastructure_share_of_failures": found.infrastructure_of_failures,
        "infrastructure_share_of_lost_gpu_time": found.infrastructure_of_gpu_time,
        "failures_per_1000_node_days": rate * 1000 if rate is not None else None,
        "ettr": figures.time.ettr,
    }
    columns = (
        TableColumn("quantity", "quantity"),
        TableColumn("own", "here", Unit.NUMBER),
        TableColumn("published", "published", Unit.NUMBER),
        TableColumn("unit", "unit"),
        TableColumn("source", "by"),
        TableColumn("note", "remark"),
    )
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (
            _WORDS.get(one.quantity, in_words(one.quantity)),
            own.get(one.quantity),
            one.value,
            one.unit,
            one.source,
            one.note,
        )
        for one in PUBLISHED
    )
    known = sum(value is not None for value in own.values())
    answer = f"{known} of {len(own)} figures that others have published are known here."
    table = FigureTable("Shares are parts of one", columns, rows)
    return ReportSection("compared", "How does this compare with other clusters?", answer, None, table)
