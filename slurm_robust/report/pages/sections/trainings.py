"""What happened to each training?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from slurm_robust.report.facts import ClosedIncident, Facts, SupervisedAttempt
from slurm_robust.report.pages.formats import count, moment
from slurm_robust.report.pages.sections.cut import MAX_PLOT_ROWS, cut_table
from slurm_robust.report.pages.view import (
    ReportSection,
    TableColumn,
    TimelineBar,
    TimelineMark,
    TimelinePlot,
    TimelineRow,
    Unit,
)

_BACK = frozenset({"resumed", "running", "came_back"})
_NOTHING_DONE = frozenset({"observed", "alerted", "refused", "superseded", "went_on"})
COLUMNS = (
    TableColumn("job", "job"),
    TableColumn("name", "name"),
    TableColumn("user", "user"),
    TableColumn("gpus", "GPUs", Unit.COUNT),
    TableColumn("eligible_at_s", "since", Unit.AT),
    TableColumn("end_at_s", "until", Unit.AT),
    TableColumn("attempts", "attempts", Unit.COUNT),
    TableColumn("incidents", "incidents", Unit.COUNT),
    TableColumn("last_step", "last step", Unit.COUNT),
    TableColumn("ettr", "ETTR", Unit.SHARE),
    TableColumn("lineage", "lineage"),
)


def trainings_section(facts: Facts, ettr: Mapping[str, float | None]) -> ReportSection:
    """Each training's attempts and incidents over time; the ones that held the most GPUs for longest first.

    Args:
        facts: What is known.
        ettr: Of each lineage, None where it cannot be said.
    """
    question = "What happened to each training?"
    attempts: dict[str, list[SupervisedAttempt]] = defaultdict(list)
    for one in facts.attempts:
        attempts[one.times.lineage].append(one)
    if not attempts:
        return ReportSection("trainings", question, "No supervised training ran in this time.")
    incidents: dict[str, list[ClosedIncident]] = defaultdict(list)
    for incident in facts.incidents:
        incidents[incident.lineage].append(incident)
    order = sorted(attempts, key=lambda lineage: (-sum(_held(one, facts) for one in attempts[lineage]), lineage))
    shown = order[:MAX_PLOT_ROWS]
    plot_rows = tuple(_row(attempts[lineage], incidents[lineage], facts) for lineage in shown)
    rows = [_cells(attempts[lineage], incidents[lineage], ettr.get(lineage)) for lineage in order]
    ran = sum(1 for lineage in order if any(one.times.end_at_s is None for one in attempts[lineage]))
    met = sum(1 for lineage in order if incidents[lineage])
    answer = f"{count(len(order), 'training')}; {met:,} had an incident, {ran:,} went on when this page was made."
    if len(order) > len(shown):
        answer += f" The plot shows the {len(shown)} that held the most GPUs for longest."
    table = cut_table("Trainings, those that held the most GPUs for longest first", COLUMNS, rows, "trainings")
    plot = TimelinePlot(facts.from_s, facts.to_s, plot_rows)
    return ReportSection("trainings", question, answer, plot, table, ("One training is all attempts of a job.",))


def outcome_of(incident: ClosedIncident) -> str:
    """The sign by which an incident is shown."""
    if incident.outcome in _NOTHING_DONE:
        return "watched"
    return "back" if incident.outcome in _BACK else "ended" if incident.outcome else "open"


def _held(one: SupervisedAttempt, facts: Facts) -> float:
    """GPU seconds within the time of the report; of nodes without GPUs, node seconds."""
    end_s = one.times.end_at_s if one.times.end_at_s is not None else facts.read_at_s
    return max(min(end_s, facts.to_s) - max(one.times.start_at_s, facts.from_s), 0.0) * (
        one.times.gpus or one.times.nodes
    )


def _row(attempts: list[SupervisedAttempt], incidents: list[ClosedIncident], facts: Facts) -> TimelineRow:
    bars = []
    for one in attempts:
        times = one.times
        bars.append(TimelineBar(times.eligible_at_s, times.start_at_s, "waiting"))
        end_s = times.end_at_s if times.end_at_s is not None else facts.read_at_s
        bars.append(TimelineBar(times.start_at_s, end_s, "running", open=times.end_at_s is None))
    marks = tuple(TimelineMark(i.opened_at_s, outcome_of(i), _told(i)) for i in incidents)
    last = attempts[-1]
    size = f"{count(last.times.gpus, 'GPU')}" if last.times.gpus else count(last.times.nodes, "node")
    detail = f"{size}, {count(len(incidents), 'incident')}"
    return TimelineRow(f"{last.name or last.times.job} ({last.user})", detail, (*bars, *_lost(incidents)), marks)


def _lost(incidents: Iterable[ClosedIncident]) -> Iterable[TimelineBar]:
    """From the fault to the first new step, of those that did something and are over."""
    for one in incidents:
        begin_s = one.times.get("fault", one.times.get("suspected"))
        end_s = one.times.get("first_new_step", one.closed_at_s)
        if begin_s is not None and end_s is not None and end_s > begin_s and outcome_of(one) != "watched":
            yield TimelineBar(begin_s, end_s, "lost")


def _told(incident: ClosedIncident) -> str:
    what = incident.category.replace("_", " ") or incident.kind.replace("_", " ")
    where = f" on {', '.join(incident.suspects[:3])}" if incident.suspects else ""
    return f"{moment(incident.opened_at_s, year=False)} {what}{where}: {incident.outcome or 'under way'}"


def _cells(
    attempts: list[SupervisedAttempt], incidents: list[ClosedIncident], ettr: float | None
) -> tuple[str | float | int | None, ...]:
    first, last = attempts[0], attempts[-1]
    step = max(one.times.last_step for one in attempts)
    return (
        *(last.times.job, last.name, last.user, last.times.gpus or None),
        *(first.times.eligible_at_s, last.times.end_at_s, len(attempts), len(incidents)),
        *(step if step >= 0 else None, ettr, last.times.lineage),
    )
