"""Snapshots of made-up clusters, as the daemon's HTTP side gets them: a healthy one and a stormy one."""

from __future__ import annotations

import json
import random
from typing import Any

from slurm_robust.daemon.api.state_snapshot import Snapshots
from slurm_robust.daemon.service import Daemon

MODELS = ("llama-70b", "vision-13b", "moe-8x22b", "embed-small", "speech-3b")
XID = "srobust: XID 79 (GPU has fallen off the bus) on GPU 0000:3b:00, in the kernel's log"


def published(daemon: Daemon) -> dict[str, Any]:
    """What the daemon would publish now, as tools read it."""
    found: dict[str, Any] = json.loads(Snapshots(daemon).take().whole())
    return found


def healthy(now_s: float, nodes: int = 128, *, seed: int = 7, jobs: int = 12) -> dict[str, Any]:
    """A cluster in order: trainings run, the pool is full, one node is out because somebody drained it."""
    pick = random.Random(seed)
    jobs = min(jobs, nodes // 4)
    each = max(1, int(nodes * 0.8) // max(1, jobs))
    rows, trainings = [], []
    names = [f"gpu{n:05d}" for n in range(1, nodes + 1)]
    for number, name in enumerate(names):
        job = number // each if number < each * jobs else None
        state = "active" if job is not None else "standby" if number >= nodes - 4 else "idle"
        rows.append(node(name, state, str(4000 + job) if job is not None else ""))
    for number in range(jobs):
        first, last = number * each + 1, (number + 1) * each
        trainings.append(
            {
                "job": str(4000 + number),
                "user": pick.choice(("ann", "bo", "cho", "dara")),
                "name": f"{pick.choice(MODELS)}-{number}",
                "partition": "batch",
                "nodes": f"gpu[{first:05d}-{last:05d}]",
                "restart_count": pick.choice((0, 0, 0, 1, 3)),
                "started_at_s": now_s - pick.uniform(600, 300_000),
                "claim": "watching",
                "suspected_at_s": None,
                "lineage": f"line-{number}",
                "step": pick.randint(100, 400_000),
                "resume_step": -1,
                "fruitless": 0,
                "incident": "",
                "ettr": round(pick.uniform(0.9, 0.99), 4),
                "ettr_hour": round(pick.uniform(0.94, 1.0), 4),
                "speed_s": round(pick.uniform(0.4, 14.0), 3),
                "spent": {"productive": 9000.0, "queue": 90.0, "start": 60.0, "restart": 80.0, "recomputation": 120.0},
            }
        )
    if rows[-5]["node_state"] == "idle":
        rows[-5].update(node_state="drained", room="drained", state="IDLE+DRAIN", owner="foreign")
        rows[-5].update(reason="memory is being replaced (ticket 4711)", since_s=now_s - 80_000)
    return {
        "at_s": round(now_s, 3),
        "cluster": "atlas",
        "mode": "act",
        "version": "0.2.0",
        "pid": 4242,
        "account": "root",
        "slurm_calls": 81_234,
        "breaker": {"open": False, "why": ""},
        "lost_gres": [],
        "nodes": rows,
        "standby": [pool(names[-4:])],
        "jobs": trainings,
        "waiting": [],
        "incidents": [incident(n, now_s - 5000 * (n + 1), outcome="resumed") for n in range(3)],
        "troubles": [],
    }


def stormy(now_s: float, nodes: int = 128, *, seed: int = 7) -> dict[str, Any]:
    """A night to remember: a rack is gone, the breaker is open, incidents are under way, the disk is full."""
    state = healthy(now_s, nodes, seed=seed)
    for row in state["nodes"][16:24]:
        row.update(node_state="drained", room="drained", state="DOWN+NOT_RESPONDING", owner="slurm", job="")
        row.update(reason="Not responding", since_s=now_s - 95)
    for row in state["nodes"][30:34]:
        row.update(node_state="drained", room="drained", state="IDLE+DRAIN", owner="srobust", reason=XID, job="")
        row.update(since_s=now_s - 1300, strikes=2, strikes_by_user={"ann": 1, "bo": 1})
    for row in state["nodes"][40:43]:
        row.update(node_state="quarantine", room="quarantine", job="", incident="4003-1", since_s=now_s - 40)
        row.update(word="gpu00041: its ranks wait in a collective that all others have left; waits for its full check")
    state["nodes"][44].update(repair=repair(now_s), node_state="drained", owner="srobust", reason=XID)
    state["nodes"][44].update(since_s=now_s - 400)
    state["breaker"] = {"open": True, "why": "9 drains within an hour, 8 are allowed"}
    state["standby"][0].update(short=2, nodes=state["standby"][0]["nodes"][:2], held="gpu[00125-00126]")
    state["troubles"] = ["the folder /var/lib/slurm_robust cannot be written (No space left on device): df -h /var/lib"]
    suspicious = state["jobs"][1 : 2 + min(2, len(state["jobs"]) - 2)]
    for job in suspicious:
        job.update(suspected_at_s=now_s - 63, incident=f"{job['job']}-1")
    state["waiting"] = [
        {"job": "4003", "user": "cho", "name": "moe-8x22b-3", "restart_count": 2, "reason": "ReqNodeNotAvail"}
    ]
    state["incidents"] = [
        incident(10, now_s - 75, job="4001", outcome="", stages=5),
        incident(11, now_s - 40, job="4003", outcome="", stages=8),
        incident(12, now_s - 300, job="4002", outcome="running", stages=10),
        incident(13, now_s - 900, job="4004", outcome="refused"),
        *state["incidents"],
    ]
    return state


def node(name: str, state: str, job: str = "") -> dict[str, Any]:
    """A row of `nodes`."""
    slurm = {"active": "ALLOCATED", "standby": "IDLE+RESERVED"}.get(state, "IDLE")
    return {
        "name": name,
        "node_state": state,
        "room": state,
        "state": slurm,
        "job": job,
        "reason": "",
        "owner": "",
        "incident": "",
        "word": "",
        "since_s": None,
        "strikes": 0,
        "strikes_by_user": {},
        "repair": None,
        "partitions": ["batch"],
        "gres": "gpu:h100:8(S:0-1)",
    }


def pool(names: list[str]) -> dict[str, Any]:
    """A row of `standby`."""
    return {
        "name": "srobust-standby-batch-gpu-h100-8-a1b2c3",
        "partition": "batch",
        "gres": "gpu:h100:8",
        "nodes": names,
        "held": f"gpu[{names[0][3:]}-{names[-1][3:]}]",
        "unchecked": "",
        "wanted": len(names),
        "short": 0,
        "ends_at_s": None,
    }


def repair(now_s: float) -> dict[str, Any]:
    """The repair of a node that is under way."""
    doing = "waits until the node has booted"
    return {"remedy": "reboot", "try": 1, "of": 2, "doing": doing, "since_s": now_s - 200, "evidence": XID}


def incident(number: int, at_s: float, *, job: str = "", outcome: str = "resumed", stages: int = 14) -> dict[str, Any]:
    """An incident of which so many stages are done."""
    after = {"fault": 0, "suspected": 31, "captured": 33, "localised": 34, "decided": 34.4, "accepted": 34.9}
    after |= {"stopped": 36, "running": 41, "imports_done": 52, "process_groups_ready": 55, "checkpoint_loaded": 63}
    after |= {"first_new_step": 66}
    job = job or str(4100 + number)
    is_open = outcome in ("", "running")
    why = f"gpu{40 + number:05d}: rank {8 * number} hangs in the forward pass of step 1200. 127 ranks wait for it."
    done = {
        "kind": "quarantine",
        "target": f"gpu{40 + number:05d}",
        "reason": why,
        "planned": True,
        "calls": 1,
        "called_at_s": at_s + 35.0,
        "done_at_s": at_s + 35.2,
        "error": "",
    }
    later = {**done, "kind": "requeue", "target": job, "called_at_s": at_s + 36, "done_at_s": None}
    return {
        "id": f"{job}-1",
        "key": f"atlas.{job}.r0.{int(at_s)}/{job}-1",
        "job": job,
        "job_id": int(job),
        "user": "ann",
        "attempt": {"cluster": "atlas", "job": job, "restart_count": 0, "start_at_s": int(at_s)},
        "kind": "claim",
        "mode": "act",
        "state": ("running" if outcome else "open") if is_open else "closed",
        "outcome": outcome,
        "reason": "" if is_open else why if outcome == "resumed" else "too many seats today",
        "opened_at_s": at_s,
        "closed_at_s": None if is_open else at_s + 66,
        "lineage": f"line-{number}",
        "verdict": {"conclusion": "culprit", "confidence": 0.93, "why": why, "suspects": [f"gpu{40 + number:05d}"]},
        "plan": {
            "road": "requeue",
            "reason": why,
            "evict": [f"gpu{40 + number:05d}"],
            "kept": [],
            "seat": "",
            "standby": ["gpu00125"],
            "time_limit_min": None,
        },
        "actions": [done, later if is_open else {**later, "done_at_s": at_s + 37}],
        "times": {key: at_s + s for key, s in list(after.items())[:stages]},
        "report": f"/home/ann/slurm-robust-{job}",
    }
