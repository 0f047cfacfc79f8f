"""A month of a cluster whose truth is known: facts as the sources would give them, and what really happened.

Everything follows from the seed. Hardware breaks as a Poisson process for each node; long trainings hold nodes and meet
these failures; programs fail, too; other jobs fill the rest. Nothing here reads a clock.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby

from slurm_robust.core.model import Attempt
from slurm_robust.core.training_time import Spent, TrainingAttempt
from slurm_robust.daemon.store.attempt_ledger import ClusterSize, PoolSize, SupervisedAttempt
from slurm_robust.report.facts import ClosedIncident, Facts, NodeDrain, NodeStrike, RanJob

BEGIN_S = 1772323200.0
"""2026-03-01 00:00 UTC."""
DAY_S, HOUR_S = 86400.0, 3600.0
GPUS = 8
CLUSTER = "simulated"
POOL = "srobust-standby-train-gpu-8-0a1b2c"
STEP_S = 4.0
CHECKPOINT_S, CHECKPOINT_EVERY_S = 6.0, 1200.0
SLOW_SHARE = 0.01
HARDWARE = (("gpu_lost", 79), ("gpu_ecc", 48), ("nvlink", 74), ("node_lost", 0), ("host_hardware", 0))
"""Category, and the XID in the drain's reason (0: none)."""
PROGRAM = ("bad_loss", "data_loader", "gpu_oom", "runtime")
NAMES = ("pretrain-7b", "eval-mmlu", "debug", "sft-chat", "prep-tokens", "run42")
STATES = (("COMPLETED", 0.55), ("FAILED", 0.25), ("CANCELLED", 0.12), ("TIMEOUT", 0.05), ("OUT_OF_MEMORY", 0.03))
USERS = ("ada", "bob", "cyd", "dee")


@dataclass(frozen=True)
class Month:
    """What the month is like.

    Attributes:
        trainings: Nodes of each supervised training; None: a half, a quarter and an eighth of the nodes.
        failures_per_day: Hardware failures of one healthy node in a day.
        program_failures_per_day: Of one training.
        lemons: Nodes that fail `lemon_factor` times as often, by their number.
        false_drains_per_day: Drains of healthy nodes in the whole cluster.
        false_alarms_per_day: Incidents after which the training went on by itself.
    """

    nodes: int = 50
    jobs: int = 400
    days: float = 30.0
    trainings: tuple[int, ...] | None = None
    failures_per_day: float = 0.01
    program_failures_per_day: float = 0.1
    lemons: tuple[int, ...] = ()
    lemon_factor: float = 5.0
    standby: int = 1
    false_drains_per_day: float = 0.05
    false_alarms_per_day: float = 0.03


@dataclass
class Truth:
    """What really happened, by which reports can be checked.

    Attributes:
        spent: Seconds of each training by category; they sum to its wall time.
        node_failures: Hardware failures by node, those that met no training too.
        interruptions: By lineage: how often it was stopped by a failure (false alarms apart).
        infrastructure: The same, by hardware alone.
        standby_hits: Evictions that found a standby node.
        jobs_by_state: Rows of `Facts.jobs` that have ended or run.
        waited_s: What each row of `Facts.jobs` that has started waited, in the order of the rows.
    """

    lemons: tuple[str, ...] = ()
    node_days: float = 0.0
    spent: dict[str, dict[Spent, float]] = field(default_factory=dict)
    ettr: dict[str, float] = field(default_factory=dict)
    node_failures: Counter[str] = field(default_factory=Counter)
    interruptions: Counter[str] = field(default_factory=Counter)
    infrastructure: Counter[str] = field(default_factory=Counter)
    incidents: int = 0
    by_category: Counter[str] = field(default_factory=Counter)
    by_road: Counter[str] = field(default_factory=Counter)
    drains: int = 0
    reverted_drains: int = 0
    false_alarms: int = 0
    standby_hits: int = 0
    standby_misses: int = 0
    jobs_by_state: Counter[str] = field(default_factory=Counter)
    gpu_hours_by_state: Counter[str] = field(default_factory=Counter)
    waited_s: list[float] = field(default_factory=list)


def simulated_month(seed: int, nodes: int = 50, jobs: int = 400, **others: object) -> tuple[Facts, Truth]:
    """Facts of a month, and their truth; `others` are fields of `Month`."""
    month = replace(Month(nodes=nodes, jobs=jobs), **others)  # type: ignore[arg-type]
    return _Simulation(random.Random(seed), month).run()


@dataclass
class _Training:
    lineage: str
    job_id: int
    user: str
    nodes: list[str]
    began_s: float
    restart: int = 0
    free_at_s: float = 0.0
    """Until then it is being brought back, and meets no further failure."""
    step: int = 0
    resumed_s: float = 0.0
    """When the steps that nobody had made before began, last."""
    attempt: TrainingAttempt | None = None


class _Simulation:
    def __init__(self, rng: random.Random, month: Month) -> None:
        self.rng, self.month, self.truth = rng, month, Truth()
        self.end_s = BEGIN_S + month.days * DAY_S
        self.names = [f"n{number:04}" for number in range(1, month.nodes + 1)]
        self.drained_until: dict[str, float] = {}
        self.attempts: list[SupervisedAttempt] = []
        self.incidents: list[ClosedIncident] = []
        self.drains: list[NodeDrain] = []
        self.strikes: list[NodeStrike] = []
        self.members: list[tuple[float, str, bool]] = []
        """When which node joined or left the pool."""
        self.jobs: list[RanJob] = []
        self.failed_at: dict[str, list[float]] = {}
        self.owner: dict[str, _Training] = {}
        self.ever: set[str] = set()
        """Nodes that a training or the pool has had."""

    def run(self) -> tuple[Facts, Truth]:
        month, truth = self.month, self.truth
        truth.node_days = month.nodes * month.days
        truth.lemons = tuple(self.names[number] for number in month.lemons)
        self.standby = self.names[-month.standby :] if month.standby else []
        self.ever.update(self.standby)
        self.members += [(BEGIN_S, name, True) for name in self.standby]
        trainings = self._trainings()
        for at_s, happens in self._events(trainings):
            happens(at_s)
        for training in trainings:
            self._end_attempt(training, None)
            spent = truth.spent[training.lineage]
            truth.ettr[training.lineage] = spent[Spent.PRODUCTIVE] / sum(spent.values())
        self._other_jobs()
        sizes = (ClusterSize(BEGIN_S, f"gpu:{GPUS}", month.nodes, GPUS),)
        facts = Facts(
            from_s=BEGIN_S,
            to_s=self.end_s,
            read_at_s=self.end_s,
            cluster=CLUSTER,
            attempts=tuple(self.attempts),
            incidents=tuple(self.incidents),
            drains=tuple(sorted(self.drains, key=lambda d: d.at_s)),
            strikes=tuple(self.strikes),
            pools=tuple(self._pools()),
            sizes=sizes,
            jobs=tuple(sorted(self.jobs, key=lambda j: (j.submitted_at_s or 0.0, j.job_id, j.restart))),
        )
        for job in facts.jobs:
            truth.jobs_by_state[job.state] += 1
            if job.started_at_s is not None and job.eligible_at_s is not None:
                truth.waited_s.append(job.started_at_s - job.eligible_at_s)
                ran_s = (job.ended_at_s or self.end_s) - job.started_at_s
                truth.gpu_hours_by_state[job.state] += job.gpus * ran_s / HOUR_S
        truth.incidents = len(self.incidents)
        return facts, truth

    def _events(self, trainings: list[_Training]) -> list[tuple[float, Callable[[float], None]]]:
        month = self.month
        events: list[tuple[float, Callable[[float], None]]] = []

        def poisson(per_day: float, happens: Callable[[float], None]) -> None:
            at_s = BEGIN_S
            while per_day > 0 and (at_s := at_s + self.rng.expovariate(per_day) * DAY_S) < self.end_s:
                events.append((at_s, happens))

        for name in self.names:
            rate = month.failures_per_day * (month.lemon_factor if name in self.truth.lemons else 1.0)
            poisson(rate, lambda at_s, name=name: self._hardware_fails(name, at_s))  # type: ignore[misc]
        for training in trainings:
            poisson(
                month.program_failures_per_day,
                lambda at_s, training=training: self._program_fails(training, at_s),  # type: ignore[misc]
            )
        if self.names:
            poisson(month.false_drains_per_day, self._drain_falsely)
        if trainings:
            poisson(month.false_alarms_per_day, lambda at_s: self._false_alarm(self.rng.choice(trainings), at_s))
        return sorted(events, key=lambda event: event[0])

    def _trainings(self) -> list[_Training]:
        wanted = self.month.trainings
        if wanted is None:
            wanted = tuple(n for n in (self.month.nodes // 2, self.month.nodes // 4, self.month.nodes // 8) if n)
        free = [name for name in self.names if name not in self.standby]
        out = []
        for number, size in enumerate(wanted):
            members, free = free[:size], free[size:]
            if not members:
                break
            queued_s, starts_s = 600.0 * (number + 1), 90.0
            training = _Training(f"train-{number}", 100 + number, USERS[number % 4], members, BEGIN_S)
            self.owner |= dict.fromkeys(members, training)
            self.ever.update(members)
            self.truth.spent[training.lineage] = dict.fromkeys(Spent, 0.0)
            self._spend(training, Spent.QUEUE, queued_s)
            self._spend(training, Spent.START, starts_s)
            first_s = BEGIN_S + queued_s + starts_s
            self._begin_attempt(training, (BEGIN_S, BEGIN_S + queued_s, first_s, first_s), -1)
            out.append(training)
        return out

    def _spend(self, training: _Training, what: Spent, seconds: float) -> None:
        self.truth.spent[training.lineage][what] += seconds

    def _begin_attempt(self, t: _Training, stamps: tuple[float, float, float, float], resume_step: int) -> None:
        eligible_s, start_s, first_s, new_s = stamps
        t.attempt = TrainingAttempt(
            *(
                t.lineage,
                str(t.job_id),
                t.restart,
                len(t.nodes),
                len(t.nodes) * GPUS,
                eligible_s,
                start_s,
                first_s,
                new_s,
            ),
            resume_step=resume_step,
        )
        t.free_at_s = t.resumed_s = new_s

    def _run_until(self, t: _Training, at_s: float) -> None:
        """Steps that nobody had made before, from the last time that they began to now."""
        assert t.attempt is not None
        ran_s = max(0.0, at_s - t.resumed_s)
        saved_s, slow_s = int(ran_s / CHECKPOINT_EVERY_S) * CHECKPOINT_S, ran_s * SLOW_SHARE
        t.step += int((ran_s - saved_s - slow_s) / STEP_S)
        self._spend(t, Spent.CHECKPOINT, saved_s)
        self._spend(t, Spent.SLOW, slow_s)
        self._spend(t, Spent.PRODUCTIVE, ran_s - saved_s - slow_s)
        a = t.attempt
        t.attempt = replace(a, checkpoint_s=a.checkpoint_s + saved_s, slow_s=a.slow_s + slow_s, last_step=t.step)

    def _end_attempt(self, t: _Training, stop: tuple[float, float] | None) -> None:
        """Write the attempt down; `stop`: its last step and its end. None: it still runs."""
        if stop is None and t.resumed_s < self.end_s:
            self._run_until(t, self.end_s)
        last_s, end_s = stop or (max(t.resumed_s, self.end_s), None)
        assert t.attempt is not None
        times = replace(t.attempt, last_step_at_s=last_s, seen_at_s=end_s or self.end_s, end_at_s=end_s)
        state = "REQUEUED" if stop else ""
        who = (CLUSTER, t.job_id, t.user, f"pretrain-{t.lineage}", "train", tuple(t.nodes))
        self.attempts.append(SupervisedAttempt(*who, times, state))
        self.jobs.append(
            RanJob(
                *(CLUSTER, str(t.job_id), t.job_id, t.restart, t.user, "lab", f"pretrain-{t.lineage}", "train"),
                *(tuple(t.nodes), len(t.nodes), len(t.nodes) * GPUS),
                *(times.eligible_at_s, times.eligible_at_s, times.start_at_s, end_s, state or "RUNNING", "0:0"),
            )
        )

    def _hardware_fails(self, name: str, at_s: float) -> None:
        if self.drained_until.get(name, 0.0) > at_s:
            return
        category, xid = self.rng.choice(HARDWARE)
        training = self.owner.get(name)
        if training is not None and not training.free_at_s <= at_s < self.end_s - HOUR_S:
            return  # on its way back already, or it would not be back before the end
        self.truth.node_failures[name] += 1
        self.failed_at.setdefault(name, []).append(at_s)
        reason = f"srobust: {name}: XID {xid} on GPU 3" if xid else f"srobust: {name} does not respond"
        back_s = at_s + self.rng.uniform(2, 24) * HOUR_S
        self.drained_until[name] = back_s
        self.drains.append(NodeDrain(name, at_s + 5.0, reason, back_s if back_s < self.end_s else None))
        self.truth.drains += 1
        if training is not None:
            self._bring_back(training, at_s, category, evict=name)
        elif name in self.standby:
            self._refill(name, at_s)

    def _program_fails(self, training: _Training, at_s: float) -> None:
        if training.free_at_s <= at_s < self.end_s - HOUR_S:
            self._bring_back(training, at_s, self.rng.choice(PROGRAM))

    def _bring_back(self, t: _Training, at_s: float, category: str, evict: str = "") -> None:
        """The training stops at its last step, `at_s`, and is brought back by the road that is open."""
        rng, old = self.rng, t.attempt
        assert old is not None
        standby = self._take_standby(evict, at_s) if evict else ""
        road = "seat" if standby else "plain_requeue" if evict else "restart_in_place"
        self._run_until(t, at_s)
        suspected_s = at_s + rng.uniform(5, 20)
        decided_s = suspected_s + rng.uniform(2, 8)
        stopped_s = decided_s + 2.0
        running_s = stopped_s + {"seat": 2.0, "plain_requeue": 121.0, "restart_in_place": 1.0}[road]
        first_s = running_s + rng.uniform(40, 60)
        # A restart in place leaves no row of an attempt of its own that could tell its first new step.
        redone_s = rng.uniform(0, min(CHECKPOINT_EVERY_S, max(1.0, at_s - t.resumed_s))) if evict else 0.0
        new_s = first_s + redone_s
        stamps = {"fault": at_s, "suspected": suspected_s, "captured": suspected_s + 1.0, "localised": decided_s - 0.5}
        stamps |= {"decided": decided_s, "stopped": stopped_s, "running": running_s, "imports_done": running_s + 20.0}
        stamps |= {"checkpoint_loaded": first_s - STEP_S, "first_new_step": first_s}
        self._incident(t, stamps, road, category, (evict, standby))
        for what, seconds in (
            (Spent.DETECTION, suspected_s - at_s),
            (Spent.DIAGNOSIS, decided_s - suspected_s),
            (Spent.RESTART, first_s - decided_s),
            (Spent.RECOMPUTATION, redone_s),
        ):
            self._spend(t, what, seconds)
        self.truth.interruptions[t.lineage] += 1
        self.truth.infrastructure[t.lineage] += bool(evict)
        if road == "restart_in_place":
            t.free_at_s = t.resumed_s = new_s
            return
        self._end_attempt(t, (at_s, stopped_s))
        t.restart += 1
        if evict:
            del self.owner[evict]
            fresh = standby or self._spare(at_s) or evict
            t.nodes[t.nodes.index(evict)] = fresh
            self.owner[fresh] = t
            self.ever.add(fresh)
        self._begin_attempt(t, (stopped_s, running_s, first_s, new_s), t.step - int(redone_s / STEP_S))

    def _incident(
        self, t: _Training, stamps: dict[str, float], road: str, category: str, nodes: tuple[str, str]
    ) -> None:
        a, (evict, standby) = t.attempt, nodes
        assert a is not None
        attempt = Attempt(CLUSTER, a.job, t.restart, int(a.start_at_s))
        number = len(self.incidents) + 1
        went_on = road == "alert_only"
        accepted = {} if road in ("restart_in_place", "alert_only") else {"accepted": stamps["decided"] + 0.2}
        self.truth.by_category[category] += not went_on
        self.truth.by_road[road] += not went_on
        self.incidents.append(
            ClosedIncident(
                key=f"{attempt.key}/i{number}",
                id=f"i{number}",
                lineage=t.lineage,
                cluster=CLUSTER,
                job=a.job,
                job_id=t.job_id,
                user=t.user,
                attempt=attempt.key,
                restart=t.restart,
                kind="claim" if accepted else "report",
                mode="act",
                state="closed",
                outcome="went_on" if went_on else "resumed",
                reason="",
                opened_at_s=stamps["suspected"],
                closed_at_s=stamps.get("first_new_step", stamps["suspected"] + 30.0),
                times=stamps | accepted,
                conclusion="culprit" if evict else "user_code",
                confidence=0.95 if evict else 0.6,
                suspects=(evict,) if evict else (),
                road=road,
                evict=(evict,) if evict else (),
                standby=(standby,) if standby else (),
                category=category,
                blame="node" if evict else "program",
                nodes=len(t.nodes),
                gpus=len(t.nodes) * GPUS,
            )
        )

    def _false_alarm(self, t: _Training, at_s: float) -> None:
        if at_s >= t.free_at_s:
            self.truth.false_alarms += 1
            self._incident(t, {"fault": at_s - 30.0, "suspected": at_s}, "alert_only", "", ("", ""))

    def _drain_falsely(self, at_s: float) -> None:
        name = self.rng.choice(self.names)
        if self.drained_until.get(name, 0.0) > at_s:
            return
        back_s = at_s + self.rng.uniform(300, 3000)
        self.drained_until[name] = back_s
        if name in self.standby:
            self.members += [(at_s, name, False), (back_s, name, True)]
        ended = back_s if back_s < self.end_s else None
        self.drains.append(NodeDrain(name, at_s, f"srobust: {name}: strikes", ended, reverted=ended is not None))
        self.truth.drains += 1
        self.truth.reverted_drains += ended is not None
        self.strikes.append(NodeStrike(name, at_s, 7, "other", "bob", "", "passed its recheck"))

    def _take_standby(self, evict: str, at_s: float) -> str:
        fit = [n for n in self.standby if self.drained_until.get(n, 0.0) <= at_s]
        self.truth.standby_hits += bool(fit)
        self.truth.standby_misses += not fit
        if not fit:
            return ""
        self.standby.remove(fit[0])
        self.standby.append(evict)  # it waits for its repair, and is a member again
        self.members += [(at_s, fit[0], False), (self.drained_until[evict], evict, True)]
        return fit[0]

    def _refill(self, name: str, at_s: float) -> None:
        fit = self._spare(at_s)
        self.members.append((at_s, name, False))
        if fit:
            self.ever.add(fit)
            self.standby[self.standby.index(name)] = fit
        self.members.append((at_s, fit, True) if fit else (self.drained_until[name], name, True))

    def _spare(self, at_s: float) -> str:
        """A node that neither a training nor the pool has ever had; empty if there is none."""
        fit = (n for n in reversed(self.names) if n not in self.ever and self.drained_until.get(n, 0.0) <= at_s)
        return next(fit, "")

    def _pools(self) -> Iterator[PoolSize]:
        """The pool after each change."""
        there: set[str] = set()
        for at_s, changes in groupby(sorted(c for c in self.members if c[0] < self.end_s), key=lambda c: c[0]):
            for _, name, joins in changes:
                (there.add if joins else there.discard)(name)
            yield PoolSize(at_s, POOL, "train", self.month.standby, tuple(sorted(there)))

    def _other_jobs(self) -> None:
        """Jobs on the nodes that no training ever had, each on the nodes that are free first."""
        free = [(BEGIN_S, name) for name in self.names if name not in self.ever]
        heapq.heapify(free)
        rng = self.rng
        for number, at_s in enumerate(sorted(rng.uniform(BEGIN_S, self.end_s) for _ in range(self.month.jobs))):
            size = min(rng.choice((1, 1, 1, 1, 2, 2, 4)), len(free))
            name = rng.choice(NAMES)
            state = rng.choices([s for s, _ in STATES], [w for _, w in STATES])[0]
            hosts = [heapq.heappop(free) for _ in range(size)]
            start_s = max([at_s + 1.0, *(since_s for since_s, _ in hosts)])
            end_s = start_s + rng.lognormvariate(7.0, 1.5)
            names = tuple(sorted(host for _, host in hosts))
            broke = [f for host in names for f in self.failed_at.get(host, ()) if start_s < f < end_s]
            if broke:
                end_s, state = min(broke), "NODE_FAIL"
            for host in names:
                heapq.heappush(free, (end_s, host))
            ran = bool(names) and start_s < self.end_s
            over = ran and end_s < self.end_s
            self.jobs.append(
                RanJob(
                    *(CLUSTER, str(1000 + number), 1000 + number, 0, rng.choice(USERS), "lab", name, "train"),
                    *(names if ran else (), size or 1, (size or 1) * GPUS, at_s, at_s, start_s if ran else None),
                    *(end_s if over else None, state if over else "RUNNING" if ran else "PENDING", "0:0"),
                )
            )
