"""A requeued job's way into its seat, by Slurm's calls alone.

The daemon takes the order "let in last": the job is requeued with a start time far ahead, and its user is let into the
seat by the call that starts it. In the other two the seat is open to the user's jobs all the time: "one call" requeues
and points the job at once, "one after the other" points it later. They show what the closed seat costs. No training,
supervisor or daemon takes part, so the figures are Slurm's own time and that of the calls.
"""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import dataclass
from typing import Any

from lib import spread, wait_for
from roads import Setting
from training import Competitor

from slurm_robust.config.site import SlurmConfig
from slurm_robust.core.model import JobRef
from slurm_robust.devcluster.cluster import DevCluster
from slurm_robust.policy.cluster.recovery_plan import SEAT_FLAGS
from slurm_robust.policy.cluster.recovery_step import LATER_S, SOON_S
from slurm_robust.slurm.commands import CommandClient
from slurm_robust.slurm.errors import SlurmRefusedError
from slurm_robust.slurm.values import expand, fold

ORDERS = ("let in last", "one call", "one after the other")
_POLL_S = 0.1
"""As the daemon polls while a recovery is open."""
_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Way:
    """One requeue: seconds until the new attempt's script ran, and whether that was in the seat."""

    requeue_to_script_s: float
    in_seat: bool


def compare(cluster: DevCluster, setting: Setting) -> dict[str, list[Way]]:
    """All orders, in turns; a job of higher priority waits for the same nodes."""
    client = CommandClient(SlurmConfig(conf=str(cluster.layout.slurm_conf)))
    ways: dict[str, list[Way]] = {order: [] for order in ORDERS}
    for number in range(setting.repeats):
        for order in ORDERS:
            ways[order].append(_one(cluster, client, setting, f"order-{number}-{len(order)}", order))
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


def _one(cluster: DevCluster, client: CommandClient, setting: Setting, name: str, order: str) -> Way:
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
    if order == "one call":
        client.requeue_and_place(ref, start_in_s=SOON_S, **place)  # type: ignore[arg-type]
    elif order == "let in last":
        client.requeue_and_place(ref, start_in_s=LATER_S, req_nodes="", exclude=suspect)
    else:
        client.requeue(ref)
    _follow(client, ref, began_s, place, let_in=order == "let in last")
    wait_for(lambda: len(log.read_text().splitlines()) > 1, _TIMEOUT_S, "the job's second attempt", poll_s=0.05)
    at_s, where = log.read_text().splitlines()[1].split()
    competitor.cancel()
    client.cancel(ref)
    wait_for(lambda: not cluster.run(["squeue", "-h"]).stdout.strip(), 60, "the job's end")
    client.delete_reservation(seat)
    return Way(float(at_s) - began_s, set(expand(where)) <= set(expand(nodes)))


def _follow(client: CommandClient, ref: JobRef, began_s: float, place: dict[str, str], *, let_in: bool) -> None:
    """Point it, or only wake Slurm's scheduler, once it waits and the second of its requeue is over."""
    while time.time() < began_s + _TIMEOUT_S:
        job = client.job(ref)
        if job is not None and job.state == "PENDING" and int(time.time()) > int(began_s):
            with contextlib.suppress(SlurmRefusedError):  # it has started just now
                if let_in:
                    client.start_in_reservation(ref, "root", math.inf, start_now=True, **place)  # type: ignore[arg-type]
                else:
                    client.update_job(ref, start_now=True, **place)  # type: ignore[arg-type]
            return
        if job is not None and job.state == "RUNNING" and job.restart_count:
            return
        time.sleep(_POLL_S)
