"""A requeued job's way into its seat, by Slurm's calls alone: requeued and placed in one call, or one after the other.

The daemon takes the first order, and the second one where a version of Slurm refuses to place a job that still ends.
No training, supervisor or daemon takes part, so the figures are Slurm's own time and that of the calls.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import Any

from lib import spread, wait_for
from roads import Setting
from training import Competitor

from slurm_robust.config import SlurmConfig
from slurm_robust.devcluster.cluster import DevCluster
from slurm_robust.model import JobRef
from slurm_robust.policy.cluster.recovery_plan import SEAT_FLAGS
from slurm_robust.policy.cluster.recovery_step import SOON_S
from slurm_robust.slurm.commands import CommandClient
from slurm_robust.slurm.errors import SlurmRefusedError
from slurm_robust.slurm.values import expand, fold

ORDERS = ("one call", "one after the other")
_POLL_S = 0.1
"""As the daemon polls while a recovery is open."""
_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Way:
    """One requeue: seconds until the new attempt's script ran, and whether that was in the seat."""

    requeue_to_script_s: float
    in_seat: bool


def compare(cluster: DevCluster, setting: Setting) -> dict[str, list[Way]]:
    """Both orders, in turns; a job of higher priority waits for the same nodes."""
    client = CommandClient(SlurmConfig(conf=str(cluster.layout.slurm_conf)))
    ways: dict[str, list[Way]] = {order: [] for order in ORDERS}
    for number in range(setting.repeats):
        for order in ORDERS:
            ways[order].append(_one(cluster, client, setting, f"order-{number}-{len(order)}", order == ORDERS[0]))
    return ways


def summary(ways: dict[str, list[Way]]) -> dict[str, dict[str, Any]]:
    """The figures of each order."""
    return {
        order: {
            "requeue_to_script_s": spread(way.requeue_to_script_s for way in found),
            "in_seat": sum(way.in_seat for way in found),
        }
        for order, found in ways.items()
    }


def _one(cluster: DevCluster, client: CommandClient, setting: Setting, name: str, one_call: bool) -> Way:
    log = cluster.layout.work / name
    script = f"#!/bin/sh\necho $(date +%s.%N) $SLURM_JOB_NODELIST >> {log}\nexec sleep 600\n"
    args = [f"--nodes={setting.ranks}", "--exclusive", "--requeue", "--output=/dev/null"]
    ref = client.submit(args, script)
    wait_for(lambda: log.exists() and log.read_text().endswith("\n"), 60, "the job's first attempt")
    competitor = Competitor(cluster, setting.ranks, 600)
    before = client.job(ref)
    assert before is not None
    free = sorted({node.name for node in client.nodes() if node.state == "IDLE"} - {*before.nodes})
    seat, suspect = f"srobust-seat-{ref.job_id}", before.nodes[0]
    nodes = fold([*before.nodes[1:], free[0]])
    client.create_reservation(seat, nodes, ("root",), 3, SEAT_FLAGS)
    place = {"req_nodes": "", "exclude": suspect, "reservation": seat}
    began_s = time.time()
    if one_call:
        client.requeue_and_place(ref, start_in_s=SOON_S, **place)  # type: ignore[arg-type]
    else:
        client.requeue(ref)
    _follow(client, ref, began_s, place)
    wait_for(lambda: len(log.read_text().splitlines()) > 1, _TIMEOUT_S, "the job's second attempt", poll_s=0.05)
    at_s, where = log.read_text().splitlines()[1].split()
    competitor.cancel()
    client.cancel(ref)
    wait_for(lambda: not cluster.run(["squeue", "-h"]).stdout.strip(), 60, "the job's end")
    client.delete_reservation(seat)
    return Way(float(at_s) - began_s, set(expand(where)) <= set(expand(nodes)))


def _follow(client: CommandClient, ref: JobRef, began_s: float, place: dict[str, str]) -> None:
    """Point it, or only wake Slurm's scheduler, once it waits and the second of its requeue is over."""
    while time.time() < began_s + _TIMEOUT_S:
        job = client.job(ref)
        if job is not None and job.state == "PENDING" and int(time.time()) > int(began_s):
            with contextlib.suppress(SlurmRefusedError):  # it has started just now
                client.update_job(ref, start_now=True, **place)  # type: ignore[arg-type]
            return
        if job is not None and job.state == "RUNNING" and job.restart_count:
            return
        time.sleep(_POLL_S)
