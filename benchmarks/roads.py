"""One function a road back to training: break a job, wait until it trains again, return the times."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lib import ROOT, first_job_id, wait_for
from training import Competitor, Training, end_all, settled

from slurm_robust.devcluster import conf
from slurm_robust.devcluster.cluster import CommandError, DevCluster, Spec

STEPS = 100_000
"""More than any run here comes to: what was measured is cancelled."""
FAULT_STEP = 13
_DEAD_MOUNT = {"kind": "dead_mount", "rank": 1, "step": FAULT_STEP}
_LATER_STEP = 400
"""Time enough for warm processes to be ready, also on a busy machine."""
_HANG = {"kind": "loader_hang", "rank": 1, "step": _LATER_STEP}
_PATIENCE_S = 200.0
PATIENCE = {"strong_patience_s": 5.0, "weak_patience_s": 5.0}
"""Shorter than the defaults (75 and 300 s), which would be added to each time from the fault to the decision."""


@dataclass(frozen=True)
class Setting:
    """Sizes of a run.

    Attributes:
        ranks: Nodes that train, a rank each.
        repeats: Of everything but the plain requeue.
        supervise: Over robust.yaml's `supervise` and `PATIENCE`; empty for what figures are taken with.
    """

    ranks: int = 3
    repeats: int = 3
    supervise: Mapping[str, Any] = field(default_factory=dict)


@contextmanager
def cluster_for(setting: Setting, *, standby: int = 1, alloc: bool = True, **wanted: Any) -> Iterator[DevCluster]:
    """A devcluster with its daemon: training nodes, one more, and the standby pool.

    Args:
        setting: Sizes.
        standby: Nodes of the pool.
        alloc: False leaves PrologFlags out, as Slurm has it by default: the prolog runs before a node's first step.
        wanted: More of the Spec.
    """
    extra = first_job_id()
    if not alloc:
        # The devcluster couples prolog and PrologFlags, and slurm.conf knows no word for none of them.
        folder = Path(tempfile.mkdtemp(prefix="srobust-bench-"))
        extra += f"Prolog={folder}/etc/prolog\nEpilog={folder}/etc/epilog\n"
        wanted |= {"prolog": False, "directory": folder}
    # Tests of the nodes would add their own time.
    yaml = {
        "supervise": {**PATIENCE, **setting.supervise},
        "ladder": {"tests": []},
        "quarantine": {"strikes_to_drain": 1000},
    }
    spec = Spec(
        nodes=setting.ranks + 1 + standby,
        gpus_per_node=2,
        standby=standby,
        daemon=True,
        robust_yaml=yaml,
        slurm_conf_extra=extra,
        **wanted,
    )
    cluster = DevCluster.up(spec)
    try:
        if not alloc:
            for which in ("prolog", "epilog"):
                ours = [ROOT / which / f"srobust-{which}"]
                lines = conf.script(which, cluster.exports, ours, cluster.layout.env, log=cluster.layout.log / "checks")
                (cluster.layout.etc / which).write_text(lines)
        settled(cluster, standby=standby > 0)
        yield cluster
    finally:
        cluster.down()


@contextmanager
def _training(cluster: DevCluster, name: str) -> Iterator[Training]:
    """A job with its folder; whatever becomes of the road, no job is left."""
    try:
        yield Training(cluster, name)
    finally:
        end_all(cluster)


def bare_start(cluster: DevCluster, setting: Setting) -> list[float]:
    """From a plain `srun` inside a running allocation to the last rank's first instruction, seconds, each repeat."""
    job = Training(cluster, "bare")
    srun = f"srun -N{setting.ranks} -n{setting.ranks} {job.program(2)}"
    job.submit(
        f"for i in $(seq {setting.repeats}); do date +%s.%N >> starts; {srun} || exit 1; done", setting.ranks + 1
    )
    wait_for(lambda: job.state()[0] == "", _PATIENCE_S, "the end of the bare starts", poll_s=0.3)
    starts = [float(line) for line in (job.folder / "starts").read_text().split()]
    found = [max(job.stamps(step=number)) - at_s for number, at_s in enumerate(starts)]
    if len(found) != setting.repeats:
        raise RuntimeError(f"the program does not run without us either:\n{job.output()[-2000:]}")
    return found


def plain_requeue(cluster: DevCluster, setting: Setting) -> dict[str, Any]:
    """`scontrol requeue` of a job that nobody supervises, with a job of 20 s waiting for the same nodes."""
    job = Training(cluster, "plain")
    job.submit(f"srun {job.program(STEPS)}", setting.ranks)
    wait_for(lambda: len(job.stamps()) == setting.ranks, 60, "the ranks of the plain job")
    competitor = Competitor(cluster, setting.ranks, 20)
    decided_s = time.time()
    cluster.run(["scontrol", "requeue", job.id])
    took_nodes = False
    wait_for(lambda: job.state()[0] == "PENDING", 60, "the requeued job's wait")
    while job.state()[0] != "RUNNING":
        took_nodes = took_nodes or competitor.started()
        if time.time() - decided_s > _PATIENCE_S:
            raise TimeoutError(f"the plain requeue did not run again in {_PATIENCE_S:g} s")
        time.sleep(0.2)
    found = {"decision_to_running_s": time.time() - decided_s, "queued_job_took_nodes": took_nodes}
    competitor.cancel()
    job.cancel()
    settled(cluster, standby=cluster.spec.standby > 0)
    return found


@dataclass(frozen=True)
class Run:
    """One repeat: the incident's times, and what a queued job got meanwhile."""

    times: dict[str, float]
    suspicion_limit_s: float | None
    queued_job_took_nodes: bool | None = None
    warm_saved_s: float | None = None
    """What the warm processes had spent on starting Python and on importing."""


def seat(cluster: DevCluster, setting: Setting, name: str, *, freeze: bool = False, **env: str) -> Run:
    """A rank stays in D state (or its node freezes): claim, daemon, standby, seat, requeue, RUNNING, training again."""
    with _training(cluster, name) as job:
        script = f"srobust run --robust-checkpoint-dir={job.folder}/ck {job.program(STEPS)}"
        job.submit(script, setting.ranks, fault=None if freeze else _DEAD_MOUNT, **env)
        frozen_at_s, node = None, ""
        if freeze:
            wait_for(lambda: f"step {FAULT_STEP}/" in job.output(), 90, f"step {FAULT_STEP}")
            node = job.state()[1][1]
            frozen_at_s = time.time()
            cluster.freeze_slurmd(node, tasks=True)
        job.hears("suspected", 90)
        competitor = Competitor(cluster, setting.ranks, 20)
        job.trains_again(_PATIENCE_S)
        took = competitor.started()
        competitor.cancel()
        run = Run(job.times(restart=1, fault_at_s=frozen_at_s), job.suspicion_limit_s(), took)
        job.cancel()
        if not freeze:
            settled(cluster, standby=True)
        return run


def in_allocation(cluster: DevCluster, setting: Setting, name: str) -> Run:
    """A rank stays in D state, and the allocation holds a spare node: the step starts anew, the job itself goes on."""
    with _training(cluster, name) as job:
        own = f"-N{setting.ranks} -n{setting.ranks} --robust-checkpoint-dir={job.folder}/ck"
        job.submit(f"srobust run {own} {job.program(STEPS)}", setting.ranks + 1, fault=_DEAD_MOUNT)
        job.hears("resumed", _PATIENCE_S)
        run = Run(job.times(restart=0), job.suspicion_limit_s())
        job.cancel()
        settled(cluster, standby=cluster.spec.standby > 0)
        return run


def in_place(cluster: DevCluster, setting: Setting, name: str, *, warm: bool) -> Run:
    """A data loader hangs, and nothing says that its node is at fault: the step starts anew on the same nodes."""
    with _training(cluster, name) as job:
        own = f"-N{setting.ranks} -n{setting.ranks} --robust-checkpoint-dir={job.folder}/ck{' --robust-warm' * warm}"
        job.submit(f"srobust run {own} {job.python(STEPS)}", setting.ranks, fault=_HANG)
        job.hears("resumed", _PATIENCE_S)
        saved_s = next((line["saved_s"] for line in job.told("warm") if "saved_s" in line), None)
        if warm and saved_s is None:
            raise RuntimeError(f"no warm restart: {[line['text'] for line in job.told('warm')]}")
        run = Run(job.times(restart=0), job.suspicion_limit_s(), warm_saved_s=saved_s)
        job.cancel()
        settled(cluster, standby=cluster.spec.standby > 0)
        return run


def repeated(count: int, one: Callable[[int], Run], *, say: Callable[[str], None], what: str) -> list[Run]:
    """Run it so often, and say how far it is; a run that fails is said, and ends its road only."""
    found = list[Run]()
    for number in range(count):
        try:
            run = one(number)
        except (RuntimeError, TimeoutError, CommandError) as error:
            say(f"{what} {number + 1}/{count} FAILED: {error}")
            break
        t = run.times
        say(f"{what} {number + 1}/{count}: decision → running {t['running'] - t['decided']:.2f} s")
        found.append(run)
    return found
