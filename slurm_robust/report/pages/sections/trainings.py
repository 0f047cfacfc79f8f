"""Shows what happened to each training."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from slurm_robust.daemon.store.attempt_ledger import SupervisedAttempt
from slurm_robust.report.facts import ClosedIncident, Facts
from slurm_robust.report.figures.all_figures import Figures
from slurm_robust.report.figures.trainings import Training, TrainingKey, key_of, unit_of
from slurm_robust.report.pages.formats import count, moment
from slurm_robust.report.pages.sections.cut import MAX_PLOT_ROWS, axis_from_s, cut_table, in_words
from slurm_robust.report.pages.view import (
    Cell,
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
    TableColumn("ettr", "ETTR", Unit.SHARE),
    TableColumn("incidents", "incidents", Unit.COUNT),
    TableColumn("eligible_at_s", "since", Unit.AT),
    TableColumn("end_at_s", "until", Unit.AT),
    TableColumn("attempts", "attempts", Unit.COUNT),
    TableColumn("last_step", "last step", Unit.COUNT),
    TableColumn("lineage", "lineage"),
)


def trainings_section(facts: Facts, figures: Figures) -> ReportSection:
    """Return the section of each training's attempts and incidents over time.

    Trainings that held the most GPUs for longest come first.
    """
    question = "What happened to each training?"
    if not figures.trainings:
        return ReportSection("trainings", question, "No supervised training ran in this time.")
    attempts: dict[TrainingKey, list[SupervisedAttempt]] = defaultdict(list)
    for one in facts.attempts:
        attempts[key_of(one)].append(one)
    incidents: dict[TrainingKey, list[ClosedIncident]] = defaultdict(list)
    for incident in facts.incidents:
        incidents[key_of(incident)].append(incident)
    unit = unit_of(figures.trainings)
    held = {t.key: sum(sum(s.shares.values()) * weight for s, weight in t.weighed(unit)) for t in figures.trainings}
    order = sorted(figures.trainings, key=lambda t: (-held[t.key], t.key.lineage))
    shown = order[:MAX_PLOT_ROWS]
    plot_rows = tuple(_row(one, attempts[one.key], incidents[one.key], facts) for one in shown)
    rows = [_cells(one, attempts[one.key], incidents[one.key], figures) for one in order]
    running, met = sum(one.running for one in order), sum(bool(incidents[one.key]) for one in order)
    answer = f"{count(len(order), 'training').capitalize()}; {met:,} had an incident, and {running:,} still ran."
    if len(order) > len(shown):
        answer += f" The plot shows the {len(shown)} that held the most GPUs for longest."
    table = cut_table("Trainings, those that held the most GPUs for longest first", COLUMNS, rows, "trainings")
    plot = TimelinePlot(axis_from_s(facts, (t.spans[0].begin_at_s for t in order)), facts.to_s, plot_rows)
    return ReportSection("trainings", question, answer, plot, table, ("One training is all attempts of a job.",))


def outcome_of(incident: ClosedIncident) -> str:
    """Return the sign by which an incident is shown."""
    if incident.outcome in _NOTHING_DONE:
        return "watched"
    return "back" if incident.outcome in _BACK else "ended" if incident.outcome else "open"


def _row(
    training: Training, attempts: list[SupervisedAttempt], incidents: list[ClosedIncident], facts: Facts
) -> TimelineRow:
    bars = []
    for one in attempts:
        times = one.times
        bars.append(TimelineBar(times.eligible_at_s, times.start_at_s, "waiting"))
        end_s = times.end_at_s if times.end_at_s is not None else facts.read_at_s
        bars.append(TimelineBar(times.start_at_s, end_s, "running", open=times.end_at_s is None))
    marks = tuple(TimelineMark(i.opened_at_s, outcome_of(i), _told(i)) for i in incidents)
    size = count(training.gpus, "GPU") if training.gpus else count(training.nodes, "node")
    detail = f"{size}, {count(len(incidents), 'incident')}"
    label = f"{training.name or training.job} ({training.key.user})"
    return TimelineRow(label, detail, (*bars, *_lost(incidents)), marks)


def _lost(incidents: Iterable[ClosedIncident]) -> Iterable[TimelineBar]:
    """Yield the times from the fault to the first new step, of incidents with an action that are over."""
    for one in incidents:
        begin_s = one.times.get("fault", one.times.get("suspected"))
        end_s = one.times.get("first_new_step", one.closed_at_s)
        if begin_s is not None and end_s is not None and end_s > begin_s and outcome_of(one) != "watched":
            yield TimelineBar(begin_s, end_s, "lost")


def _told(incident: ClosedIncident) -> str:
    what = in_words(incident.category) or in_words(incident.kind)
    where = f" on {', '.join(incident.suspects[:3])}" if incident.suspects else ""
    return f"{moment(incident.opened_at_s, year=False)} {what}{where}: {incident.outcome or 'under way'}"


def _cells(
    training: Training, attempts: list[SupervisedAttempt], incidents: list[ClosedIncident], figures: Figures
) -> tuple[Cell, ...]:
    step = max(one.times.last_step for one in attempts)
    end_s = max((one.times.end_at_s or 0.0 for one in attempts), default=0.0)
    return (
        *(training.job, training.name, training.key.user, training.gpus or None),
        *(figures.time_by_training[training.key].ettr, len(incidents)),
        *(attempts[0].times.eligible_at_s, None if training.running else end_s, len(attempts)),
        *(step if step >= 0 else None, training.key.lineage),
    )
