"""A scripted day: real trainings on a devcluster, known faults at known times, and the report beside the truth.

The ranks, the batch scripts and this program write down what happens, with their own clock (`day_truth`). Afterwards
the report's facts and figures are read as `srobust report` reads them, and each number is compared: counts exactly,
times to two seconds, because Slurm's own times are whole seconds at both ends, and the daemon looks once in a while.

    scripts/scripted-day [--keep-report FILE.html]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from day_acts import AWAY, CRASH, HANG, LOST, PROGRAM, STEADY, TWICE, UNFIT, Act
from day_truth import RANK, TrainingTruth, truth_of
from helpers import wait_until

from slurm_robust.config import site as config
from slurm_robust.core.spent_time import Spent
from slurm_robust.devcluster.cluster import DevCluster, Spec
from slurm_robust.report.facts import Facts
from slurm_robust.report.figures.all_figures import Figures, figures_of
from slurm_robust.report.figures.failures import is_failure
from slurm_robust.report.figures.trainings import was_stopped
from slurm_robust.report.read import FactSources, read_facts
from slurm_robust.slurm.factory import connect

TOLERANCE_S = 2.0
"""Slurm's begin and end of a job are whole seconds; the daemon learns of a training's end when it looks."""
POLL_S = 2.0
"""The supervisor looks twice a second for what no rank has a stamp of: the last step, and the first that is new.

On a busy machine a look takes its time: 1.1 s were seen on two cores with six test runners. What is compared so
closely lasts longer than this, or a report that says nothing of it would pass."""
STEP_S = 0.3
"""Ranks stamp their first step; the supervisor may have seen one rank alone, and the others are a step apart."""
STOPPED = (Spent.DETECTION, Spent.DIAGNOSIS, Spent.RESTART)
"""Ranks cannot tell them apart: they stand still."""
SUPERVISE = {
    "suspicion_floor_s": 1.5, "corroborate_after_s": 2.2, "recapture_s": 4.0, "tick_s": 0.25,
    "strong_patience_s": 4.0, "weak_patience_s": 8.0,
}  # fmt: skip
RECHECK = (
    "test ! -e {work}/unfit-$SLURMD_NODENAME || {{ scontrol update jobid=$SLURM_JOB_ID "
    "comment='srobust-check: unfit: XID 79 on GPU 3'; exit 1; }}"
)


@dataclass(frozen=True)
class Compared:
    """One number of the report beside the truth."""

    what: str
    report: Any
    truth: Any
    tolerance: float = 0.0

    @property
    def well(self) -> bool:
        """Whether they agree."""
        if self.report is None or self.truth is None or not self.tolerance:
            return bool(self.report == self.truth)
        return bool(abs(self.report - self.truth) <= self.tolerance)

    def line(self) -> str:
        """For people."""
        shown = [f"{v:.2f}" if isinstance(v, float) else str(v) for v in (self.report, self.truth)]
        return f"{'well ' if self.well else 'WRONG'} {self.what:44} report {shown[0]:>12}  truth {shown[1]:>12}"


@dataclass
class Played:
    """A training that was submitted."""

    act: Act
    job_id: int
    box: Path
    submitted_at_s: float

    @property
    def truth(self) -> TrainingTruth:
        """What its ranks have told."""
        return truth_of(self.box, self.submitted_at_s)


@dataclass
class Day:
    """A cluster with its daemon and accounting, what was done on it, and what this program alone knows of that."""

    cluster: DevCluster
    began_at_s: float = field(default_factory=time.time)
    played: list[Played] = field(default_factory=list)
    states: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Runs of jobs by name and Slurm's state."""
    checks: int = 0
    drained: list[str] = field(default_factory=list)
    taken_back: list[str] = field(default_factory=list)
    hits: int = 0
    submitted: int = 0

    def __post_init__(self) -> None:
        self.client = connect(config.load(self.cluster.env["SROBUST_CONFIG"]).slurm)
        (self.cluster.layout.work / "rank.py").write_text(RANK)

    # -- what is done -------------------------------------------------------------------------------------------------

    def submit(self, *args: str, name: str, script: str) -> int:
        """Submit a job; returns its id."""
        words = ["sbatch", "--parsable", f"--job-name={name}", "--exclusive", "--open-mode=append"]
        words += [f"--chdir={self.cluster.layout.work}", f"--output={name}.out", *args]
        done = self.cluster.run(words, input=f"#!/bin/bash\n{script}\n")
        return int(done.stdout.split(";")[0])

    def play(self, act: Act) -> Played:
        """Submit a training."""
        box = self.cluster.layout.work / act.name
        box.mkdir()
        plan = {"steps": act.steps, "step_s": 0.1, "every": act.every, "stall_s": act.stall_s, "strikes": act.strikes}
        (box / "plan.json").write_text(json.dumps(plan))
        rank = f"{sys.executable} {self.cluster.layout.work}/rank.py {box}"
        script = f"date +%s.%N >> {box}/begun\nsrobust run --ntasks-per-node=1 {rank}\ncode=$?\n"
        script += f"date +%s.%N > {box}/ended\nexit $code"
        at_s = time.time()
        job = self.submit("-N2", "--gres=gpu:2", "--requeue", name=act.name, script=script)
        self.played.append(Played(act, job, box, at_s))
        return self.played[-1]

    def strike(self, played: Played) -> None:
        """What this program itself does to a training, and what it then expects of others."""
        act = played.act
        if act.lose_node or act.unfit:
            told = played.box / "1.told"
            mark = '"struck"' if act.unfit else f'"step", {act.lose_node}]'
            wait_until(lambda: told.exists() and mark in told.read_text(), 60, f"{act.name} at its strike", poll_s=0.05)
            node = self.job(played.job_id).nodes[1]
            self.drained.append(node)
            if act.unfit:
                (self.cluster.layout.work / f"unfit-{node}").touch()
            else:
                self.cluster.kill_slurmd(node)
        if act.away:
            told, launches = played.box / "1.told", len(act.strikes) + 1
            wait_until(lambda: told.exists() and '"step", 20]' in told.read_text(), 60, "its steps", poll_s=0.05)
            self.cluster.kill_daemon()

            def is_over() -> bool:
                text = told.read_text()
                return text.count('"begin"') == launches and text.rpartition('"begin"')[2].count('"step"') > 50

            wait_until(is_over, 150, f"{act.name} after its last strike")
            self.cluster.start_daemon()
        moved = [road for road, _ in act.roads if road in ("seat", "owner_requeue", "plain_requeue")]
        self.hits += len(moved)
        self.checks += len(moved) - bool(act.lose_node)

    def ends(self, played: Played) -> None:
        """Wait for its end, and for what follows from it."""
        wait_until((played.box / "ended").exists, 150, f"the end of {played.act.name}", poll_s=0.2)
        for state in played.act.states:
            self.states[played.act.name, state] += 1

    def pool_is_full(self) -> None:
        """Wait until the standby node is there."""

        def full() -> bool:
            pools = json.loads(self.cluster.run(["srobust", "standby", "--json"], check=False).stdout or "[]")
            return bool(pools and pools[0]["held"])

        wait_until(full, 60, "the standby node")

    def take_back(self, node: str) -> None:
        """A person resumes a node that was drained a moment ago."""
        wait_until(lambda: next(n for n in self.client.nodes() if n.name == node).drained, 60, f"{node} is drained")
        time.sleep(2)  # the daemon has seen it
        self.cluster.run(["scontrol", "update", f"nodename={node}", "state=resume"])
        self.taken_back.append(node)

    def unsupervised(self, name: str, script: str, state: str, *args: str) -> int:
        """A job that nobody supervises."""
        self.states[name, state] += 1
        return self.submit("-N1", *args, name=name, script=script)

    def job(self, job_id: int) -> Any:
        """The job as Slurm shows it."""
        from slurm_robust.core.model import JobRef  # noqa: PLC0415

        return self.client.job(JobRef(job_id))

    # -- what is compared ---------------------------------------------------------------------------------------------

    def facts(self) -> Facts:
        """As `srobust report` reads them, once everything has ended."""
        log = self.cluster.layout.log / "slurmctld.log"
        sources = FactSources(self.cluster.layout.state / "srobustd", self.client)

        def settled() -> Facts | None:
            now_s = time.time()
            self.submitted = log.read_text().count("_slurm_rpc_submit_batch_job: JobId=")
            facts = read_facts(sources, self.began_at_s - 1, now_s, now_s)
            ended = all(job.ended_at_s for job in facts.jobs)
            ended &= len({job.job_id for job in facts.jobs}) >= self.submitted
            ended &= len(facts.jobs) >= self.states.total() + self.checks
            closed = all(i.state == "closed" for i in facts.incidents) and all(a.times.end_at_s for a in facts.attempts)
            back = sum(drain.ended_at_s is not None for drain in facts.drains) >= len(self.taken_back)
            return facts if ended and closed and back and len(facts.drains) >= len(self.drained) else None

        found = wait_until(settled, 60, "all jobs ended in the accounting, all incidents closed", poll_s=0.5)
        assert found is not None
        return found

    def compare(self, facts: Facts, figures: Figures) -> list[Compared]:
        """Every number that this program knows."""
        return [*self._of_trainings(facts, figures), *self._of_the_cluster(facts, figures)]

    def _of_trainings(self, facts: Facts, figures: Figures) -> Iterator[Compared]:
        by_job = {training.job: training for training in figures.trainings}
        yield Compared("trainings", len(figures.trainings), len(self.played))
        for played in self.played:
            name, truth, training = played.act.name, played.truth, by_job.get(str(played.job_id))
            yield Compared(f"{name}: is there", training is not None, True)
            if training is None:
                continue
            shares = figures.time_by_training[training.key]
            parts = {what.value: shares.seconds[what] for what in Spent}
            stopped = sum(parts.pop(what.value) for what in STOPPED)
            lasted_s = training.spans[-1].end_at_s - training.spans[0].begin_at_s
            yield Compared(f"{name}: parts sum to its time", shares.total_s, lasted_s, 0.001)
            report = {"wall": shares.total_s, "stopped": stopped, **parts}
            known: Mapping[str, float] = {what.value: 0.0 for what in Spent if what not in STOPPED} | truth.spent
            if played.act.away:
                yield from self._of_one_that_nobody_watched(name, report, known)
                continue
            for what, seconds in known.items():
                # Between stamps of ranks alone lies none of Slurm's whole seconds.
                exact = what in ("stopped", Spent.RECOMPUTATION.value, Spent.CHECKPOINT.value)
                exact &= played.act.states != ("FAILED",)  # there, the end of the job is one of them
                yield Compared(f"{name}: {what}, s", report[what], seconds, POLL_S if exact else TOLERANCE_S)
            yield Compared(f"{name}: GPUs", training.gpus, 4)
            yield Compared(f"{name}: runs", training.attempts, len(truth.runs))
            yield from self._steps(facts, played)
            incidents = [row for row in facts.incidents if row.job_id == played.job_id]
            told = Counter((row.road, row.outcome) for row in incidents if is_failure(row))
            yield Compared(f"{name}: failures by road and outcome", told, Counter(played.act.roads))
            yield Compared(f"{name}: false alarms", sum(not was_stopped(row) for row in incidents), 0)

    @staticmethod
    def _of_one_that_nobody_watched(
        name: str, report: Mapping[str, float], known: Mapping[str, float]
    ) -> Iterator[Compared]:
        """What was lost is unknown: neither counted as steps nor made up, and all of it accounts for the rest."""
        yield Compared(f"{name}: wall, s", report["wall"], known["wall"], TOLERANCE_S)
        for what, seconds in known.items():
            if what not in ("wall", Spent.UNKNOWN.value):
                bounds = (report[what] - TOLERANCE_S, report[what] + report[Spent.UNKNOWN.value] + TOLERANCE_S)
                yield Compared(f"{name}: {what} {seconds:.1f} s, in bounds", bounds[0] <= seconds <= bounds[1], True)

    @staticmethod
    def _steps(facts: Facts, played: Played) -> Iterator[Compared]:
        """Stamps of steps come from the ranks themselves, so they agree to parts of a second."""
        attempts = [row.times for row in facts.attempts if row.job_id == played.job_id]
        firsts = [t for row in attempts for t in (row.first_step_at_s, *(pair[0] for pair in row.restarts_within))]
        news = [t for row in attempts for t in (row.first_new_step_at_s, *(pair[1] for pair in row.restarts_within))]
        launches, name = played.truth.launches, played.act.name
        yield Compared(f"{name}: launches", len(firsts), len(launches))
        for number, (launch, first, new) in enumerate(zip(launches, firsts, news, strict=False)):
            yield Compared(f"{name}: first step of launch {number}", first, launch.first_step_at_s, STEP_S)
            yield Compared(f"{name}: first new step of launch {number}", new, launch.first_new_step_at_s, POLL_S)
        failures = sorted(
            (row for row in facts.incidents if row.job_id == played.job_id and is_failure(row)),
            key=lambda row: row.opened_at_s,
        )
        for number, (row, launch) in enumerate(zip(failures, launches, strict=False)):
            yield Compared(f"{name}: fault {number}", row.times.get("fault"), launch.last_step_at_s, POLL_S)
            if number + 1 < len(launches):
                after, told = launches[number + 1], row.times
                first, new = after.first_step_at_s, after.first_new_step_at_s
                yield Compared(f"{name}: step after fault {number}", told.get("first_step"), first, STEP_S)
                yield Compared(f"{name}: back after fault {number}", told.get("first_new_step"), new, POLL_S)

    def _of_the_cluster(self, facts: Facts, figures: Figures) -> Iterator[Compared]:
        total = figures.time.total_s
        yield Compared("ETTR's parts sum to 1", sum((figures.time.shares or {}).values()), 1.0, 1e-9)
        weighed = sum(4 * figures.time_by_training[training.key].total_s for training in figures.trainings)
        yield Compared("GPU seconds of all trainings", total, weighed, 0.01)
        failed = [played for played in self.played for _ in played.act.roads]
        yield Compared("failures", figures.reliability.total.by_hours.failures, len(failed))
        moved = sum(outcome == "resumed" for p in self.played for _, outcome in p.act.roads)
        yield Compared("resumed failures with their time back", figures.reliability.total.back_s.n, moved)
        roads = {row.road: row.restarts for row in figures.restarts}
        yield Compared("failures by road", roads, Counter(road for p in self.played for road, _ in p.act.roads))
        yield Compared("standby: nodes needed", figures.standby.needed, self.hits)
        yield Compared("standby: hits", figures.standby.hits, self.hits)
        yield Compared("drained nodes", sorted(drain.node for drain in facts.drains), sorted(self.drained))
        back = sorted(drain.node for drain in facts.drains if drain.reverted)
        yield Compared("drains taken back", back, sorted(self.taken_back))
        strikes = self.checks - sum(p.act.unfit for p in self.played)
        yield Compared("suspects that passed their check", figures.false_alarms.cleared_suspects, strikes)
        checks = [job for job in facts.jobs if job.name.startswith("srobust-recheck")]
        yield Compared("rechecks of suspects in the accounting", len(checks), self.checks)
        # The pool's new members are checked, too: how many jobs there were in all, slurmctld's own log says.
        yield Compared("jobs", len({job.job_id for job in facts.jobs}), self.submitted)
        told = Counter((job.name, job.state) for job in facts.jobs if not job.name.startswith("srobust-"))
        yield Compared("runs of jobs by name and state", told, self.states)


@contextmanager
def day_on(directory: Path, nodes: int, *, slurmd_timeout_s: int = 10) -> Iterator[Day]:
    """A cluster for a day."""
    yaml = {
        "supervise": SUPERVISE,
        "ladder": {"tests": []},
        "daemon": {"idle_interval_s": 0.25},
        # A day of one user's faults within minutes.
        "quarantine": {
            "recheck_command": ["/bin/sh", "-c", RECHECK.format(work=directory / "work")],
            "max_per_user_hour": 100,
        },
    }
    spec = Spec(
        nodes=nodes, gpus_per_node=2, standby=1, daemon=True, directory=directory, robust_yaml=yaml, prolog=False,
        accounting=True, kill_wait_s=2, slurmd_timeout_s=slurmd_timeout_s,
    )  # fmt: skip
    cluster = DevCluster.up(spec, timeout_s=90)
    try:
        yield Day(cluster)
    finally:
        cluster.down()


def whole_day(day: Day, say: Callable[[str], None]) -> None:
    """All acts: one that runs all the time, the others one after the other."""
    day.pool_is_full()
    steady = day.play(STEADY)
    day.unsupervised("evaluation", "sleep 1", "COMPLETED")
    day.unsupervised("broken", "exit 3", "FAILED")
    cancelled = day.unsupervised("cancelled", "sleep 600", "CANCELLED")
    day.unsupervised("too-long", "sleep 600", "TIMEOUT", "--time=1")
    for act in (Act("good"), HANG, CRASH, PROGRAM, UNFIT, TWICE, AWAY, LOST):
        day.pool_is_full()
        say(act.name)
        played = day.play(act)
        day.strike(played)
        day.ends(played)
        if act.name == "hang":
            day.cluster.run(["scancel", str(cancelled)])
        if act.unfit:
            day.take_back(day.drained[-1])
    day.ends(steady)


def main() -> int:
    """The whole day, and its comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep-report", type=Path, metavar="FILE.html", help="the day's page")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="srobust-day-") as folder:
        Path(folder).chmod(0o755)
        with day_on(Path(folder) / "c", 9, slurmd_timeout_s=3) as day:
            whole_day(day, lambda text: print(f"{time.time() - day.began_at_s:6.0f} s {text}", flush=True))
            facts = day.facts()
            rows = day.compare(facts, figures_of(facts))
            if args.keep_report:
                shown = day.cluster.run(["srobust", "report", "--out", str(args.keep_report.resolve())])
                print(shown.stderr, end="")
    print("\n".join(row.line() for row in rows))
    print("\n".join(facts.doubts))
    wrong = sum(not row.well for row in rows)
    print(f"{len(rows)} numbers, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
