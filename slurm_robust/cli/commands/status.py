"""`srobust status`: the daemon's state, for people."""

from __future__ import annotations

import time
from typing import Any

import click

from slurm_robust.cli.commands.incidents import why
from slurm_robust.cli.commands.nodes import repair
from slurm_robust.cli.state import STALE_S, clock, duration, load_config, load_state, print_json, source_options
from slurm_robust.cli.table import sentence, table
from slurm_robust.cli.teaching import SHOWN, lesson
from slurm_robust.policy.cluster.node_states import LOST_GRES, NodeState

_LEFT_ALONE = ("observed", "alerted", "refused")
"""Outcomes after which nobody acts on a job that still hangs."""
UNTOLD_S = 3600.0
"""A target of `notify` that has not taken a message for so long needs a person."""


@click.command(
    "status",
    epilog=lesson(
        [
            ("srobust status", "the first thing to type at 3 a.m."),
            ("srobust status --json | jq .breaker", "the same, all of it, for tools"),
        ],
        SHOWN,
    ),
)
@source_options
def command(path: str | None, as_json: bool) -> None:
    """What needs a person now, in the first line; then daemon, nodes by state, supervised jobs, open incidents."""
    state = load_state(load_config(path))
    if as_json:
        print_json(state)
        return
    now_s = time.time()
    wanted = needs(state, now_s)
    sentence(f"Needs a person now: {'; '.join(wanted)}" if wanted else "Nothing needs a person now.")
    click.echo()
    breaker = state["breaker"]
    breaker_text = f"open: {breaker['why']} (reset it with: srobust breaker reset)" if breaker["open"] else "closed"
    age = duration(now_s - state["at_s"])
    click.echo(f"cluster {state['cluster']}   mode {state['mode']}   as of {age} ago   breaker {breaker_text}")
    from slurm_robust.slurm.values import fold  # noqa: PLC0415 (slow to load)

    if lost := state.get("lost_gres"):
        click.echo(f"{fold(lost)}: {LOST_GRES}")
    names: dict[str, list[str]] = {}
    for node in state["nodes"]:
        names.setdefault(node["node_state"], []).append(node["name"])
    nodes = [(name, len(names[name]), fold(names[name])) for name in (s.value for s in NodeState) if name in names]
    click.echo()
    table("Nodes", ("state", "number", "nodes"), nodes)
    if repairs := [(n["name"], repair(n)) for n in state["nodes"] if n.get("repair")]:
        click.echo()
        table("Repairs", ("node", "what"), repairs)
    if waiting := [(n["name"], n["word"]) for n in state["nodes"] if n["node_state"] == "quarantine" and n["word"]]:
        click.echo()
        table("Quarantine", ("node", "why, and what it waits for"), waiting)
    columns = ("job", "user", "name", "nodes", "attempt", "step", "says", "incident")
    rows = [
        (
            *(j[key] for key in ("job", "user", "name", "nodes", "restart_count")),
            *(j["step"] if j["step"] >= 0 else "", _says(j, now_s), j["incident"]),
        )
        for j in state["jobs"]
    ]
    rows += [
        (j["job"], j["user"], j["name"], "", j["restart_count"], "", f"waits to start: {j['reason']}", "")
        for j in state.get("waiting", ())
    ]
    click.echo()
    table("Supervised jobs", columns, rows, drop=("name", "attempt", "user"))
    live = [i for i in state["incidents"] if i["state"] != "closed"]
    shown = live or state["incidents"][:5]
    lines = [(clock(i["opened_at_s"]), i["id"], i["job"], i["outcome"] or i["state"], why(i)) for i in shown]
    click.echo()
    table("Open incidents" if live else "Last incidents", ("opened", "id", "job", "outcome", "reason"), lines)


def _says(job: dict[str, Any], now_s: float) -> str:
    """What the job reports; a suspicion comes before everything else."""
    if job.get("suspected_at_s") and job["claim"] == "watching":
        return f"suspects a fault since {duration(max(0.0, now_s - job['suspected_at_s']))}"
    return {"wants": "asks for a requeue"}.get(job["claim"], str(job["claim"]))


def needs(state: dict[str, Any], now_s: float) -> list[str]:
    """Sentences, each with the command to type; empty if nobody is needed."""
    sentences = list(state.get("troubles", ()))
    age_s = now_s - state["at_s"]
    if age_s > STALE_S and not sentences:
        sentences.append(f"the state below is {duration(age_s)} old: the daemon does not update it")
    if state["breaker"]["open"]:
        sentences.append(
            f"the breaker is open ({state['breaker']['why']}): once the cause is known, srobust breaker reset"
        )
    sentences += [_hangs(job, state, now_s) for job in state["jobs"] if _left_alone(job, state)]
    sentences += [
        f"job {job['job']} is held ({job['reason']}): scontrol release {job['job']}"
        for job in state.get("waiting", ())
        if "held" in job["reason"].lower() and job["reason"] != "JobHeldUser"  # held by its owner
    ]
    ours = [n["name"] for n in state["nodes"] if n["owner"] == "srobust" and not n.get("repair")]
    if ours:
        sentences.append(f"{_names(ours)} drained and to be repaired: srobust nodes --state drained")
    short = sum(int(pool["short"]) for pool in state["standby"])
    if short:
        sentences.append(f"the standby pool lacks {short} node{'s' if short > 1 else ''}: srobust standby")
    sentences += [
        f"nobody is told by {t['target']} ({t['error']}): srobust notify test --target {t['target']}"
        for t in state.get("notify", ())
        if t["failing_since_s"] and now_s - t["failing_since_s"] > UNTOLD_S
    ]
    return sentences


def _names(nodes: list[str]) -> str:
    return f"{nodes[0]} is" if len(nodes) == 1 else f"{len(nodes)} nodes ({', '.join(nodes[:4])}, …) are"


def outcome_of(job: dict[str, Any], state: dict[str, Any]) -> str:
    """The outcome of the incident that a running job names; empty while it is open, or if there is none."""
    mine = (i for i in state["incidents"] if i["job"] == job["job"] and i["id"] == job["incident"])
    return next((str(i["outcome"]) for i in mine), "")


def _left_alone(job: dict[str, Any], state: dict[str, Any]) -> bool:
    return bool(job.get("suspected_at_s")) and outcome_of(job, state) in _LEFT_ALONE


def _hangs(job: dict[str, Any], state: dict[str, Any], now_s: float) -> str:
    since = duration(max(0.0, now_s - job["suspected_at_s"]))
    why = {"observed": "observe mode", "refused": "its claim was refused"}.get(outcome_of(job, state), "alert only")
    return (
        f"job {job['job']} of {job['user']} has made no progress for {since}, and nothing is done about it ({why}): "
        f"srobust incidents {job['job']}"
    )
