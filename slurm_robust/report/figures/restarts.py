"""Where do restarts spend their seconds, by road?

Each stage lies between two stamps of an incident; a stage counts only if both stamps are known. A stage that ends
before it begins is counted in `odd` and left out of medians. The stages of a road need not sum to the whole: medians do
not add, and not every incident has every stamp.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from slurm_robust.report.facts import ClosedIncident, Facts
from slurm_robust.report.figures.failures import is_failure
from slurm_robust.report.figures.reliability import time_back_s
from slurm_robust.report.figures.spread import Spread, spread

STAGES: tuple[tuple[str, str, str], ...] = (
    ("detection", "fault", "suspected"),
    ("capture", "suspected", "captured"),
    ("localisation", "captured", "localised"),
    ("tests", "tests_started", "tests_done"),
    ("decision", "localised", "decided"),
    ("stop", "decided", "stopped"),
    ("placement", "stopped", "running"),
    ("imports", "running", "imports_done"),
    ("process groups", "imports_done", "process_groups_ready"),
    ("load", "process_groups_ready", "checkpoint_loaded"),
    ("first step", "checkpoint_loaded", "first_step"),
    ("recomputation", "first_step", "first_new_step"),
)
"""Name, first and last stamp of each stage, in order. If a stamp is missing, the next stage begins at the last known
stamp (only `imports` to `first step`)."""
_START_UP = ("running", "imports_done", "process_groups_ready", "checkpoint_loaded")


@dataclass(frozen=True)
class RestartRow:
    """The restarts by one road.

    Attributes:
        outcomes: The number of restarts by their outcome.
        stages: Seconds by the names of `STAGES`; only stages that were seen.
        placed_s: Seconds from the decision to the running job.
        back_s: Seconds from the fault to the first step after it that had not been made before.
        odd: Stages that would end before they begin.
    """

    road: str
    restarts: int
    outcomes: Mapping[str, int]
    stages: Mapping[str, Spread]
    placed_s: Spread
    back_s: Spread
    odd: int


def stages_of(incident: ClosedIncident) -> dict[str, float]:
    """Seconds of each stage that is known, also negative ones."""
    times, found = incident.times, dict[str, float]()
    for name, begin, end in STAGES:
        begin_s = times.get(begin)
        if begin_s is None and begin in _START_UP:
            earlier = _START_UP[: _START_UP.index(begin)]
            begin_s = next((times[stamp] for stamp in reversed(earlier) if stamp in times), None)
        if begin_s is not None and end in times:
            found[name] = times[end] - begin_s
    return found


def restarts_by_road(facts: Facts) -> tuple[RestartRow, ...]:
    """Return the restarts of all failures with a road, by road, the most frequent road first."""
    by_road: dict[str, list[ClosedIncident]] = defaultdict(list)
    for incident in facts.incidents:
        if is_failure(incident) and incident.road:
            by_road[incident.road].append(incident)
    rows = [_row(road, incidents) for road, incidents in by_road.items()]
    return tuple(sorted(rows, key=lambda row: (-row.restarts, row.road)))


def _row(road: str, incidents: list[ClosedIncident]) -> RestartRow:
    stages: dict[str, list[float]] = defaultdict(list)
    placed, back, odd = list[float](), list[float](), 0
    for incident in incidents:
        for name, seconds in stages_of(incident).items():
            if seconds >= 0:
                stages[name].append(seconds)
            else:
                odd += 1
        if "decided" in incident.times and "running" in incident.times:
            placed.append(incident.times["running"] - incident.times["decided"])
        if (seconds_back := time_back_s(incident)) is not None:
            back.append(seconds_back)
    return RestartRow(
        road,
        len(incidents),
        dict(Counter(incident.outcome or "open" for incident in incidents).most_common()),
        {name: spread(stages[name]) for name, _, _ in STAGES if stages.get(name)},
        spread(seconds for seconds in placed if seconds >= 0),
        spread(back),
        odd,
    )
