"""A simulated month as files: the daemon's journal, the incidents' folders, and a stand-in for sacct with its answers.

The stand-in prints what Slurm's own would print for the day that it is asked for, so everything from the command line
to the page is the product's. What slurmdbd needs for its answers is not measured here.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from simulated_month import BEGIN_S, DAY_S, Truth, simulated_month

from slurm_robust.core.model import Attempt, Conclusion, Incident, JobRef, Plan, Road, Suspect, Verdict
from slurm_robust.core.training_time import Spent
from slurm_robust.daemon.store.attempt_ledger import AttemptLedger
from slurm_robust.daemon.store.journal import IncidentRow, Journal
from slurm_robust.policy.cluster.recovery_plan import Recovery
from slurm_robust.report.facts import ClosedIncident, Facts, RanJob
from slurm_robust.slurm.values import fold

SEPARATOR = "\x1f"
"""Between fields in the files; the stand-in puts in the one that it is asked for."""
FOLDER_BYTES = 30_000
"""Of an incident's file: most of it are merged stacks."""
_SACCT = f"""#!/bin/sh
# Answers as sacct -P: the day that begins at -S, with the delimiter that is asked for.
while [ $# -gt 0 ]; do
  case "$1" in
    --delimiter=*) delimiter=${{1#--delimiter=}} ;;
    -S) begin=$2; shift ;;
  esac
  shift
done
exec sed "s/{SEPARATOR}/$delimiter/g" "$(dirname "$0")/answers/$begin"
"""


def make(folder: Path, nodes: int, jobs: int, trainings: tuple[int, ...], seed: int) -> dict[str, float]:
    """Write the month into this folder, and return what is true of it."""
    facts, truth = simulated_month(seed, nodes, jobs, trainings=trainings, standby=max(1, nodes // 250))
    _write_journal(folder, facts)
    _write_sacct(folder / "bin", facts.jobs, round((facts.to_s - facts.from_s) / DAY_S))
    (folder / "robust.yaml").write_text(f"slurm: {{bin_dir: {folder / 'bin'}, timeout_s: 60}}\n")
    return _what_is_true(facts, truth)


def _what_is_true(facts: Facts, truth: Truth) -> dict[str, float]:
    return {
        "runs": len(facts.jobs),
        "ettr": _ettr(facts, truth),
        "incidents": truth.incidents,
        "drains": truth.drains,
        "attempts": len(facts.attempts),
        "trainings": len(truth.spent),
        "gpu_hours": sum(truth.gpu_hours_by_state.values()),
    }


def _ettr(facts: Facts, truth: Truth) -> float:
    """Of all trainings, weighed with their nodes."""
    nodes = {attempt.times.lineage: attempt.times.nodes for attempt in facts.attempts}
    whole = sum(sum(spent.values()) * nodes[name] for name, spent in truth.spent.items())
    return sum(spent[Spent.PRODUCTIVE] * nodes[name] for name, spent in truth.spent.items()) / whole


def _write_journal(folder: Path, facts: Facts) -> None:
    journal = Journal.open(folder / "state")
    try:
        journal.db.execute("PRAGMA synchronous = OFF")
        ledger = AttemptLedger(journal)
        ledger.write(replace(a, run_at_s=int(a.times.start_at_s)) for a in facts.attempts)
        ledger.add_sizes(facts.pools, facts.sizes)
        for number, incident in enumerate(facts.incidents):
            job_folder = folder / "jobs" / str(number)
            _write_incident(job_folder / incident.id, incident)
            journal.add_incident(_incident_row(incident, job_folder))
        drains = [(d.node, d.at_s, d.reason, d.ended_at_s) for d in facts.drains]
        strikes = [
            (s.node, s.job_id, s.lineage, s.at_s, s.why, s.incident, s.user, s.failed_test) for s in facts.strikes
        ]
        with journal.transaction():
            journal.db.executemany("INSERT INTO drains VALUES (?, ?, ?, ?)", drains)
            journal.db.executemany("INSERT INTO strikes VALUES (?, ?, ?, ?, ?, ?, ?, ?)", strikes)
    finally:
        journal.close()


def _incident_row(i: ClosedIncident, folder: Path) -> IncidentRow:
    attempt = Attempt(i.cluster, i.job, i.restart, int(i.attempt.rpartition(".")[2]))
    why = f"{i.category or 'nothing'} broke"
    suspects = tuple(Suspect(node, (), i.confidence, why) for node in i.suspects)
    verdict = Verdict(Conclusion.of(i.conclusion), why, suspects)
    plan = Plan(Road(i.road), why, i.evict)
    recovery = None
    if i.kind == "claim":
        seat = "srobust-seat" if i.road == "seat" else ""
        recovery = Recovery("claim", JobRef(i.job_id), i.user, i.restart, i.evict, (), i.standby, seat, reason=why)
    incident = Incident(i.id, i.job, attempt.key, i.opened_at_s, times=dict(i.times), verdict=verdict, plan=plan)
    return IncidentRow(
        *(i.key, incident, attempt, i.job_id, i.user, i.kind, i.mode, i.lineage, i.state, i.outcome, i.closed_at_s),
        recovery=recovery,
        confidence=i.confidence,
        report=str(folder),
    )


def _write_incident(folder: Path, incident: ClosedIncident) -> None:
    folder.mkdir(parents=True)
    cause = {"category": incident.category, "blame": incident.blame} if incident.category else None
    stacks = "all_reduce;" * (FOLDER_BYTES // 11)
    (folder / "incident.json").write_text(json.dumps({"id": incident.id, "cause": cause, "stacks": stacks}))


def _write_sacct(folder: Path, jobs: Iterable[RanJob], days: int) -> None:
    """The program, and a file for each day with the runs that were there on it."""
    answers = folder / "answers"
    answers.mkdir(parents=True)
    texts: list[list[str]] = [[] for _ in range(days)]
    folded: dict[tuple[str, ...], str] = {}
    for job in jobs:
        if job.nodes not in folded:
            folded[job.nodes] = fold(job.nodes) if job.nodes else "None assigned"
        line = _line(job, folded[job.nodes])
        first, last = _day(job.eligible_at_s or BEGIN_S), _day(job.ended_at_s) if job.ended_at_s else days - 1
        for day in range(max(0, first), min(days - 1, last) + 1):
            texts[day].append(line)
    for day, lines in enumerate(texts):
        # One second early: so the product asks, since Slurm rounds.
        begin = dt.datetime.fromtimestamp(BEGIN_S + day * DAY_S - 1, dt.timezone.utc)
        (answers / begin.strftime("%Y-%m-%dT%H:%M:%S")).write_text("".join(lines))
    program = folder / "sacct"
    program.write_text(_SACCT)
    program.chmod(0o755)


def _day(at_s: float) -> int:
    return int((at_s - BEGIN_S) // DAY_S)


def _time(at_s: float | None) -> str:
    return "Unknown" if at_s is None else str(int(at_s))


def _line(job: RanJob, nodes: str) -> str:
    tres = f"billing={job.gpus},cpu={job.gpus * 12},gres/gpu={job.gpus},mem={job.gpus * 200}G,node={job.node_count}"
    state = "CANCELLED by 1000" if job.state == "CANCELLED" else job.state
    allocated = tres if job.nodes else ""
    times = (job.submitted_at_s, job.eligible_at_s, job.started_at_s, job.ended_at_s)
    who = (str(job.job_id), job.job, job.cluster, job.user, job.account, job.name, job.partition)
    fields = (*who, nodes, str(job.node_count), allocated, tres, *map(_time, times), state, job.exit_code)
    return SEPARATOR.join(fields) + "\n"
