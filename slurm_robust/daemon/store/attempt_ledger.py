"""Keeps every attempt of a training, what interrupted it, and how large the cluster and its pools were."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, TypeVar

from slurm_robust.core.training_time import LEFT_ALONE, Stop, TrainingAttempt
from slurm_robust.daemon.store.journal import Journal
from slurm_robust.slurm.errors import SlurmParseError
from slurm_robust.slurm.values import expand, fold

SINCE_VERSION = 6
"""The first version of the journal with these tables."""
DONE = "DONE"
"""State of an attempt whose training has ended well, while its job goes on with other things."""
VANISHED = "VANISHED"
"""The state of an attempt whose job Slurm did not know any more: its end was not seen."""
_T = TypeVar("_T")
_OPEN = "state IN ('', 'DONE')"


@dataclass(frozen=True)
class SupervisedAttempt:
    """One attempt of a supervised training: a run of its job.

    Attributes:
        nodes: The names of the nodes.
        times: The times of the training in this attempt.
        state: Slurm's state at its end (`COMPLETED`, `REQUEUED`, `NODE_FAIL`, …), `DONE` or `VANISHED`; empty while it
            runs.
        run_at_s: Slurm's start of the run; job ids are reused.
    """

    cluster: str
    job_id: int
    user: str
    name: str
    partition: str
    nodes: tuple[str, ...]
    times: TrainingAttempt
    state: str = ""
    run_at_s: int = 0

    @property
    def key(self) -> tuple[int, int, int, str]:
        """Unique in the journal."""
        return self.job_id, self.times.restart, self.run_at_s, self.times.lineage

    def timed(self, **changes: Any) -> SupervisedAttempt:
        """Return the attempt with these times."""
        return replace(self, times=replace(self.times, **changes))


@dataclass(frozen=True)
class PoolSize:
    """A standby pool, from this time on until the next row of the same pool."""

    at_s: float
    pool: str
    partition: str
    wanted: int
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class ClusterSize:
    """The number of nodes of one hardware class, from this time on until the next row of the same class.

    Attributes:
        gres: The class: generic resources of each node, as Slurm writes them; empty for none.
        gpus: The number of GPUs on each of these nodes.
    """

    at_s: float
    gres: str
    nodes: int
    gpus: int


@lru_cache(maxsize=1024)
def _folded(nodes: tuple[str, ...]) -> str:
    """Fold an attempt's nodes; remembered, since an attempt is written once a minute, with the same nodes."""
    return fold(nodes)


def _columns(row: SupervisedAttempt) -> dict[str, Any]:
    own = {name: value for name, value in vars(row).items() if name not in ("times", "nodes")}
    times = dict(vars(row.times))
    count, pairs = times.pop("nodes"), {name: json.dumps(times[name]) for name in _PAIRS}
    return own | times | {"nodes": _folded(row.nodes), "node_count": count} | pairs


_PAIRS = ("restarts_within", "unwatched")
_OWN = ("cluster", "job_id", "run_at_s", "user", "name", "partition", "state")
_TIMES = tuple(field.name for field in fields(TrainingAttempt))


def _times(columns: dict[str, Any]) -> TrainingAttempt:
    # A journal that an older daemon writes lacks what came later.
    pairs = {name: tuple((one, two) for one, two in json.loads(columns.get(name, "[]"))) for name in _PAIRS}
    columns |= {"nodes": columns["node_count"], **pairs}
    return TrainingAttempt(**{name: columns[name] for name in _TIMES})


def attempt_of(columns: Mapping[str, Any]) -> SupervisedAttempt:
    """Return the attempt that a row of the table `attempts` has."""
    values = dict(columns)
    names = expand(values["nodes"], remember=False)
    return SupervisedAttempt(**{name: values[name] for name in _OWN}, nodes=names, times=_times(values))


def _readable(make: Callable[[dict[str, Any]], _T], rows: Iterable[sqlite3.Row]) -> list[_T]:
    """Return the values of the rows, without damaged rows: a daemon must be able to start in spite of them."""
    found = list[_T]()
    for row in rows:
        with contextlib.suppress(ValueError, TypeError, KeyError, SlurmParseError):
            found.append(make(dict(row)))
    return found


class AttemptLedger:
    """Reads and writes these tables. The journal of an older daemon does not have them: then nothing is known."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.db: sqlite3.Connection = journal.db

    def _read(self, query: str, args: Sequence[object] | Mapping[str, object]) -> list[sqlite3.Row]:
        if int(self.db.execute("PRAGMA user_version").fetchone()[0]) < SINCE_VERSION:
            return []
        return list(self.db.execute(query, args))

    # -- attempts -----------------------------------------------------------------------------------------------------

    def write(self, rows: Iterable[SupervisedAttempt]) -> None:
        """Write these attempts as they are now, in one transaction."""
        found = [_columns(row) for row in rows]
        if not found:
            return
        columns, marks = ", ".join(found[0]), ", ".join(f":{name}" for name in found[0])
        with self.journal.transaction():
            # Column names come from the dataclasses, never from outside.
            self.db.executemany(f"INSERT OR REPLACE INTO attempts({columns}) VALUES({marks})", found)

    def _attempts(self, where: str, *args: object) -> list[SupervisedAttempt]:
        query = f"SELECT * FROM attempts WHERE {where} ORDER BY start_at_s, seen_at_s"  # noqa: S608 (our own conditions)
        return _readable(attempt_of, self._read(query, args))

    def attempts(self, from_s: float, to_s: float, *, whole: bool = False) -> list[SupervisedAttempt]:
        """Attempts that waited or ran at some time in this window, oldest first.

        Args:
            from_s: Begin of the window.
            to_s: End of the window.
            whole: With all other attempts of the same trainings.
        """
        inside = "seen_at_s >= ? AND eligible_at_s <= ?"
        if whole:
            inside = f"(job_id, user, lineage) IN (SELECT job_id, user, lineage FROM attempts WHERE {inside})"  # noqa: S608
        return self._attempts(inside, from_s, to_s)

    def training(self, job_id: int, user: str, lineage: str) -> list[SupervisedAttempt]:
        """Return all attempts of one training, oldest first."""
        return self._attempts("job_id = ? AND user = ? AND lineage = ?", job_id, user, lineage)

    def run(self, job_id: int, user: str, restart: int) -> SupervisedAttempt | None:
        """Return the newest attempt of this job with that restart count; None if none was seen."""
        found = self._attempts("job_id = ? AND user = ? AND restart = ?", job_id, user, restart)
        return found[-1] if found else None

    def times_of(self, job_id: int, user: str, lineage: str) -> list[TrainingAttempt]:
        """Return the times of a training in all its attempts, oldest first; without the names of their nodes."""
        query = "SELECT * FROM attempts WHERE job_id = ? AND user = ? AND lineage = ? ORDER BY start_at_s, seen_at_s"
        return _readable(_times, self.db.execute(query, (job_id, user, lineage)))

    def unfinished(self) -> list[SupervisedAttempt]:
        """Return attempts whose job was not seen to end."""
        return self._attempts(_OPEN)

    def end_run(self, row: SupervisedAttempt) -> None:
        """Give all trainings that were done within a run of a job the state at its end."""
        run = (row.state, row.job_id, row.times.restart, row.run_at_s, DONE)
        query = "UPDATE attempts SET state = ? WHERE job_id = ? AND restart = ? AND run_at_s = ? AND state = ?"
        self.db.execute(query, run)

    def lineages_of_run(self, job_id: int, restart: int, run_at_s: int) -> int:
        """Return how many trainings this run of a job has named."""
        query = "SELECT count(*) FROM attempts WHERE job_id = ? AND restart = ? AND run_at_s = ?"
        return int(self.db.execute(query, (job_id, restart, run_at_s)).fetchone()[0])

    def stops(self, job_id: int, user: str, since_s: float) -> list[Stop]:
        """Return the interruptions of a job since then: the stamps of its incidents.

        One incident may have several rows.
        """
        query = (
            "SELECT id, times, opened_at_s, outcome FROM incidents WHERE job_id = ? AND user = ? AND opened_at_s >= ?"
        )
        found: dict[str, Stop] = {}
        for row in self.db.execute(f"{query} ORDER BY opened_at_s", (job_id, user, since_s)):
            before = found.get(row["id"], Stop({}, row["opened_at_s"], left_alone=True))
            times, alone = {**before.times, **json.loads(row["times"])}, before.left_alone
            found[row["id"]] = Stop(times, before.opened_at_s, left_alone=alone and row["outcome"] in LEFT_ALONE)
        return list(found.values())

    # -- sizes --------------------------------------------------------------------------------------------------------

    def pool_sizes(self, from_s: float, to_s: float) -> list[PoolSize]:
        """Return the pools within this window, oldest first: their state at its beginning, and every change."""

        def made(row: dict[str, Any]) -> PoolSize:
            return PoolSize(**{**row, "nodes": expand(row["nodes"])})

        return _readable(made, self._sized("pool", from_s, to_s))

    def cluster_sizes(self, from_s: float, to_s: float) -> list[ClusterSize]:
        """Return the numbers of nodes within this window."""
        return [ClusterSize(**dict(row)) for row in self._sized("gres", from_s, to_s)]

    def _sized(self, of: str, from_s: float, to_s: float) -> list[sqlite3.Row]:
        table = {"pool": "pool_sizes", "gres": "cluster_sizes"}[of]
        before = f"SELECT {of}, max(at_s) FROM {table} WHERE at_s <= :from_s GROUP BY {of}"  # noqa: S608 (our own names)
        inside = f"at_s <= :to_s AND (at_s > :from_s OR ({of}, at_s) IN ({before}))"
        query = f"SELECT * FROM {table} WHERE {inside} ORDER BY at_s, rowid"  # noqa: S608 (our own names)
        return self._read(query, {"from_s": from_s, "to_s": to_s})

    def add_sizes(self, pools: Iterable[PoolSize] = (), cluster: Iterable[ClusterSize] = ()) -> None:
        """Write down changed sizes."""
        with self.journal.transaction():
            self.db.executemany(
                "INSERT INTO pool_sizes(at_s, pool, partition, wanted, nodes) VALUES(?, ?, ?, ?, ?)",
                [(p.at_s, p.pool, p.partition, p.wanted, fold(p.nodes)) for p in pools],
            )
            self.db.executemany(
                "INSERT INTO cluster_sizes(at_s, gres, nodes, gpus) VALUES(?, ?, ?, ?)",
                [(c.at_s, c.gres, c.nodes, c.gpus) for c in cluster],
            )
