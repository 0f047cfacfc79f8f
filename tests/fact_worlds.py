"""A journal and an accounting that tests fill."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slurm_robust.core.model import Action, ActionKind, Attempt, Conclusion, Incident, JobRef, Suspect, Verdict
from slurm_robust.daemon.store.journal import CLOSED, IncidentRow, Journal
from slurm_robust.policy.cluster.recovery_plan import Recovery
from slurm_robust.slurm.client import PastRun
from slurm_robust.slurm.errors import SlurmError

BEGIN_S = 1_790_000_000.0
DAY_S = 86400.0


def incident_row(ident: str, opened_at_s: float, folder: str = "", **more: object) -> IncidentRow:
    """A closed incident of job 7: n2 was evicted, n9 took its place."""
    attempt = Attempt("c", "7", 0, int(BEGIN_S))
    verdict = Verdict(Conclusion.CULPRIT, "n2 hangs", (Suspect("n2", (8,), 0.9, "n2 hangs"),))
    incident = Incident(
        ident,
        "7",
        attempt.key,
        opened_at_s,
        times={"fault": opened_at_s - 5, "suspected": opened_at_s},
        verdict=verdict,
    )
    action = Action(ActionKind.QUARANTINE, "n2", "n2 hangs")
    recovery = Recovery("claim", JobRef(7), "ann", 0, ("n2",), ("n1",), ("n9",), "seat", actions=(action,))
    values = {"lineage": "7.0", "state": CLOSED, "outcome": "resumed", "closed_at_s": opened_at_s + 60, **more}
    return IncidentRow(
        f"k.{ident}", incident, attempt, 7, "ann", "claim", "act", recovery=recovery, report=folder, **values
    )


def journal_with(folder: Path, rows: Sequence[IncidentRow] = (), *, new: bool = True) -> Journal:
    """A journal in that folder; `new`: with the tables of attempts and sizes, which older ones have not."""
    journal = Journal.open(folder)
    if not new:
        journal.db.executescript("DROP TABLE attempts; DROP TABLE pool_sizes; DROP TABLE cluster_sizes")
    for row in rows:
        journal.add_incident(row)
    return journal


def add_attempt(journal: Journal, **values: object) -> None:
    """An attempt of job 7 on n1 and n2, from the begin on; `values` replace its own."""
    own: dict[str, object] = {
        "lineage": "7.0", "cluster": "c", "job": "7", "job_id": 7, "restart": 0, "user": "ann", "name": "train",
        "partition": "main", "nodes": "n[1-2]", "node_count": 2, "gpus": 16, "eligible_at_s": BEGIN_S - 10,
        "start_at_s": BEGIN_S, "first_step_at_s": BEGIN_S + 30, "seen_at_s": BEGIN_S + 90, "resume_step": -1,
        "last_step": 100, "checkpoint_s": 2.5, "slow_s": 0.0, "state": "",
        "step_s": 0.0, "report_every_s": 60.0, "restarts_within": "[]",
    }  # fmt: skip
    own |= values
    own["run_at_s"] = int(BEGIN_S) + int(journal.db.execute("SELECT count(*) FROM attempts").fetchone()[0])
    marks = ", ".join(f":{name}" for name in own)
    journal.db.execute(f"INSERT INTO attempts({', '.join(own)}) VALUES ({marks})", own)


def past_run(job_id: int = 7, **values: object) -> PastRun:
    """A run of the accounting, of a minute at the begin."""
    at_s = int(BEGIN_S)
    whole = PastRun(
        job_id, str(job_id), "c", "ann", "lab", "train", "main", "n[1-2]", 2, 16, at_s - 10, at_s - 10, at_s, at_s + 60,
        "COMPLETED", "0:0",
    )  # fmt: skip
    return whole._replace(**values)


@dataclass
class FakeAccounting:
    """`sacct` in memory: what overlaps with the time that is asked for, as the real one."""

    runs: list[PastRun]
    error_after: int = 1_000_000
    """So many calls are answered."""
    asked: list[tuple[int, int]] = field(default_factory=list)
    unread: dict[str, list[str]] = field(default_factory=dict)

    def past_runs(self, from_s: int, to_s: int, *, timeout_s: float) -> list[PastRun]:
        """As the client's."""
        self.asked.append((from_s, to_s))
        if len(self.asked) > self.error_after:
            raise SlurmError("read the accounting", "Problem talking to the database:\n Connection refused")
        return [
            run
            for run in self.runs
            if (run.eligible_at_s or 0) < to_s and (run.ended_at_s is None or run.ended_at_s >= from_s)
        ]


def incident_folder(folder: Path, ident: str, cause: object) -> Path:
    """The folder of an incident, as a supervisor leaves it."""
    (folder / ident).mkdir(parents=True)
    path = folder / ident / "incident.json"
    path.write_text(json.dumps({"id": ident, "cause": cause}))
    return path
