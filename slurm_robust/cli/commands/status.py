"""`srobust status`: the daemon's state, for people."""

from __future__ import annotations

import time
from typing import Any

import click

from slurm_robust.cli.commands.incidents import why
from slurm_robust.cli.commands.nodes import repair
from slurm_robust.cli.commands.standby import tell_suspects
from slurm_robust.cli.state import clock, config_to_show, load_state, print_json, source_options
from slurm_robust.cli.table import sentence, table
from slurm_robust.cli.teaching import SHOWN, lesson
from slurm_robust.core.text import duration, shortened
from slurm_robust.daemon.api.needs import needs
from slurm_robust.policy.cluster.node_states import LOST_GRES, NodeState

CLOCKS_DIFFER_S = 5.0
TOLD_S = 10.0
"""A step that was told longer ago, and without its time, has its age beside it."""


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
    state = load_state(config_to_show(path))
    if as_json:
        print_json(state)
        return
    now_s = time.time()
    wanted = needs(state, now_s)
    # All times but `at_s` are slurmctld's.
    slurm_s = now_s - state.get("clock_ahead_s", 0)
    reading = state.get("reading")
    if wanted or not reading:
        sentence(f"Needs a person now: {'; '.join(wanted)}" if wanted else "Nothing needs a person now.")
    if reading:
        sentence(
            "The daemon has just begun, and still reads nodes and jobs from Slurm: type this again in some seconds."
        )
    click.echo()
    breaker = state["breaker"]
    breaker_text = f"open: {breaker['why']} (reset it with: srobust breaker reset)" if breaker["open"] else "closed"
    if not breaker["open"] and breaker.get("out"):
        breaker_text += f", {breaker['out']} out of service ({breaker['quarantined']} in quarantine)"
    age_s = now_s - state["at_s"]
    age = duration(max(0.0, age_s))
    if age_s <= -CLOCKS_DIFFER_S:
        sentence(f"The clock of this host is {duration(-age_s)} behind that of the daemon's host: timedatectl")
    if (lease := state.get("lease", {})).get("standing_by"):
        who = f"the daemon on {lease['host']} acts: type srobust status there" if lease["host"] else "asks who acts"
        sentence(f"This daemon stands by, and does nothing; {who}.")
        click.echo()
    mode = state["mode"]
    since = f" since {duration(now_s - state['mode_since_s'])}" if state.get("mode_since_s") else ""
    click.echo(f"cluster {state['cluster']}   mode {mode}{since}   as of {age} ago   breaker {breaker_text}")
    _who_differs(state)
    from slurm_robust.slurm.values import fold  # noqa: PLC0415 (slow to load)

    if lost := state.get("lost_gres"):
        click.echo(f"{fold(lost)}: {LOST_GRES}")
    if (short := sum(int(pool["short"]) for pool in state["standby"])) and not any("lacks" in said for said in wanted):
        sentence(f"The standby pool lacks {short} node{'s' if short > 1 else ''}: it is filled when one is free.")
    tell_suspects(state["standby"])
    if not reading:
        _tell_nodes_and_jobs(state, slurm_s)
    live = [i for i in state["incidents"] if i["state"] != "closed"]
    lines = [
        (clock(i["opened_at_s"]), i["id"], i["job"], i["outcome"] or i["state"], why(i))
        for i in live or state["incidents"][:5]
    ]
    click.echo()
    table("Open incidents" if live else "Last incidents", ("opened", "id", "job", "outcome", "reason"), lines)


def _tell_nodes_and_jobs(state: dict[str, Any], slurm_s: float) -> None:
    """Print the tables of nodes and jobs; `slurm_s` is slurmctld's time."""
    from slurm_robust.slurm.values import fold  # noqa: PLC0415 (slow to load)

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
            *(_step(j, slurm_s), _says(j, slurm_s), j["incident"]),
        )
        for j in state["jobs"]
    ]
    rows += [
        (j["job"], j["user"], j["name"], "", j["restart_count"], "", _waits(j), "") for j in state.get("waiting", ())
    ]
    click.echo()
    table("Supervised jobs", columns, rows, drop=("name", "attempt", "user"))
    _stand_still(state, slurm_s)


def _who_differs(state: dict[str, Any]) -> None:
    """Say who is in another mode, or of another build, than the daemon."""
    mode = state["mode"]
    for other, there in state.get("watch_modes", {}).items():
        if other != mode:
            sentence(f"The node watch of {there} is in mode {other}: see mode in robust.yaml there")
    for made, there in state.get("watch_builds", {}).items():
        if made != state.get("build"):
            ours = f"{state['version']} build {state.get('build')}"
            sentence(f"The node watch of {there} is of build {made}, the daemon of {ours}: finish the upgrade there")
    if others := [j for j in state["jobs"] if j.get("mode") not in (None, mode)]:
        names = shortened(", ".join(j["job"] for j in others), 100)
        who, they = (f"Job {names} is", "it") if len(others) == 1 else (f"{len(others)} jobs ({names}) are", "they")
        text = "a job keeps its mode, and takes the new one when it is requeued"
        sentence(f"{who} in mode {others[0]['mode']}, in which {they} began: {text}")


def _stand_still(state: dict[str, Any], now_s: float) -> None:
    """Name the jobs whose stacks have stood still for long; it is unknown whether these jobs hang."""
    for job in state["jobs"]:
        if job.get("still_since_s"):
            since, where = duration(max(0.0, now_s - job["still_since_s"])), job.get("still") or "see"
            text = f"Job {job['job']} tells no progress, and its stacks have stood still for {since}; it may be healthy"
            sentence(f"{text}. {where[0].upper()}{where[1:]}: srobust stacks {job['job']}")


def _step(job: dict[str, Any], now_s: float) -> str:
    """Return the last step that the job has told, and the age of the step, or else of the report."""
    if job["step"] < 0:
        return ""
    if at_s := job.get("step_at_s"):
        return f"{job['step']}, {duration(max(0.0, now_s - at_s))} ago"
    told_s = now_s - (job.get("told_at_s") or now_s)
    return f"{job['step']}, told {duration(told_s)} ago" if told_s > TOLD_S else str(job["step"])


def _says(job: dict[str, Any], now_s: float) -> str:
    """Return what the job reports; a suspicion comes before everything else."""
    if job.get("suspected_at_s") and job["claim"] == "watching":
        since = f"suspects a fault since {duration(max(0.0, now_s - job['suspected_at_s']))}"
        return f"{since}, observes" if job.get("mode") == "observe" else since
    says = {"wants": "asks for a requeue"}.get(job["claim"], str(job["claim"]))
    return f"{says}, observes" if job.get("mode") == "observe" else says


def _waits(job: dict[str, Any]) -> str:
    """Return why a job waits, in Slurm's words, and the nodes that it may not use."""
    left_out = ", ".join(f"{node} ({why})" for node, why in job.get("left_out", {}).items())
    return f"waits to start: {job['reason']}" + (f"; leaves out {left_out}" if left_out else "")
