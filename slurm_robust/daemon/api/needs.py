"""Lists what needs a person now, from a snapshot: for `srobust status` and the dashboard. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from slurm_robust.core.model import BESIDE
from slurm_robust.core.text import duration, shortened
from slurm_robust.policy.cluster.node_states import FAILED_FOR_SLURM, REBOOTED, rebooted
from slurm_robust.policy.job.live_loss import says_lost
from slurm_robust.slurm.values import fold

STALE_S = 30.0
"""A snapshot that is older than this is not the daemon's state any more."""
UNWRITABLE = "cannot be written"
"""Words in the troubles of a daemon that cannot write into its folder, and so does nothing."""
UNTOLD_S = 600.0
"""A target of `notify` that has not taken a message for so long needs a person; one without its secret does at once."""
NOT_BACK = ("not_started", "aborted", "refused")
"""Outcomes after which a job that waits has only Slurm's own queue left."""
STARTS_SOON = ("", "None", "BeginTime")
"""Reasons of a job that waits, but not for nodes."""
BY_OWNER = ("JobHeldUser", "job requeued in held state")
"""Reasons of jobs that their owner holds, by `scontrol hold` and `scontrol requeuehold`."""
SHORT_TOLD_S = 3600.0
"""A standby pool that is short is filled as soon as a node is free; only one that stays short needs a person."""
STORM_TOLD_S = 3600.0
"""A storm of faults is named for so long."""
LEFT_ALONE = ("observed", "alerted", "refused")
"""Outcomes after which a job that still hangs is left alone."""


def needs(state: dict[str, Any], now_s: float) -> list[str]:
    """Return sentences, each with the command to type; empty if no person is needed."""
    sentences = list(state.get("troubles", ()))
    age_s = now_s - state["at_s"]
    if age_s > STALE_S and not sentences:
        sentences.append(f"the state below is {duration(age_s)} old: the daemon does not update it")
    now_s -= state.get("clock_ahead_s", 0)  # the times below are slurmctld's
    if state["breaker"]["open"]:
        sentences.append(
            f"the breaker is open ({state['breaker']['why']}): once the cause is known, srobust breaker reset"
        )
    sentences += [
        f"{bar['why']}: for a day no claim of {bar['user']}'s jobs is accepted; to end that: "
        f"srobust breaker reset --user {bar['user']}"
        for bar in state.get("barred", ())
    ]
    sentences += [_hangs(job, state, now_s) for job in state["jobs"] if _left_alone(job, state)]
    sentences += [
        f"job {job['job']} of {job['user']} goes on with a loss that is not finite: {bad_loss_commands(job['job'])}"
        for job in state["jobs"]
        if _bad_loss(job, state)
    ]
    sentences += [
        f"job {job['job']} is held ({job['reason']}): scontrol release {job['job']}"
        for job in state.get("waiting", ())
        if "held" in job["reason"].lower() and job["reason"] not in BY_OWNER
    ]
    sentences += [
        f"job {job['job']} waits ({job['reason']}) and leaves {', '.join(fit)} out, as its own claim wanted: "
        f"scontrol update JobId={job['job']} ExcNodeList="
        for job in state.get("waiting", ())
        if (fit := [n for n, why in job.get("left_out", {}).items() if why == "fit"]) and job["reason"] == "Resources"
    ]
    ours = [n["name"] for n in state["nodes"] if n["owner"] == "srobust" and not n.get("repair")]
    if ours:
        sentences.append(f"{_names(ours)} drained and to be repaired: srobust nodes --state drained")
    sentences += _rebooted(state) + _drained_by_slurm(state)
    if lost := state.get("lost_jobs"):
        jobs = shortened(",".join(str(job["job"]) for job in lost), 100)
        sentences.append(f"{lost_trainings(lost)}: sacct -j {jobs}")
    sentences += _not_back(state)
    sentences += _storm(state, now_s)
    sentences += [_blind(group) for group in state.get("blind_nodes", ())]
    sentences += [_full(group) for group in state.get("full_nodes", ())]
    sentences += [_kept_out(job) for job in state.get("kept_out", ())]
    lacking = [pool for pool in state["standby"] if now_s - (pool.get("short_since_s") or now_s) > SHORT_TOLD_S]
    if short := sum(int(pool["short"]) for pool in lacking):
        lacks = f"the standby pool lacks {short} node{'s' if short > 1 else ''}"
        sentences.append(f"{lacks} for more than an hour: srobust standby")
    sentences += [
        f"nobody is told by {t['target']} ({t['error']}): srobust notify test --target {t['target']}"
        for t in state.get("notify", ())
        if t["failing_since_s"] and (now_s - t["failing_since_s"] > UNTOLD_S or t["error"].startswith("/"))
    ]
    return sentences


def lost_trainings(jobs: list[dict[str, Any]]) -> str:
    """Return a sentence about these jobs, which Slurm has forgotten while they ran."""
    names = shortened(", ".join(f"job {job['job']} of {job['user']}" for job in jobs), 200)
    what = f"{len(jobs)} running training{'s' if len(jobs) > 1 else ''} ({names})"
    return f"Slurm has lost {what}: it knows neither them nor their end, so their owners have to submit them again"


def _not_back(state: dict[str, Any]) -> list[str]:
    """Name the jobs that wait because they were not brought back, and the nodes that Slurm lost under jobs of ours."""
    # A plain requeue waits two minutes by itself.
    waiting = {
        str(job["job"]): job for job in state.get("waiting", ()) if job["reason"] not in (*STARTS_SOON, *BY_OWNER)
    }
    last = {str(i["job"]): i for i in reversed(state["incidents"])}
    jobs = [job for job in waiting if job in last and last[job]["outcome"] in NOT_BACK]
    sentences = [
        f"job {job} was not brought back and waits ({waiting[job]['reason']}): srobust incidents {job}" for job in jobs
    ]
    down = [n["name"] for n in state["nodes"] if _lost(n)] if jobs else []
    if down:
        back = f"scontrol update NodeName={','.join(down)} State=RESUME"
        sentences.append(f"{_names(down)} DOWN: sinfo -R; once that is mended: {back}")
    return sentences


def _lost(node: dict[str, Any]) -> bool:
    """Return whether Slurm has set the node DOWN, unwanted by any person."""
    return node["state"].startswith("DOWN") and "POWER" not in node["state"] and node["owner"] in ("", "slurm")


def _rebooted(state: dict[str, Any]) -> list[str]:
    """Name the nodes that Slurm keeps DOWN since they have booted, unless somebody else took them out of service."""
    down = [n["name"] for n in state["nodes"] if rebooted(n.get("state", "").split("+"), n.get("reason", ""))]
    if not down:
        return []
    back = f"scontrol update NodeName={fold(down)} State=RESUME"
    return [f"{_names(down)} DOWN ({REBOOTED}), and Slurm leaves it so: once its log says why: {back}"]


def _drained_by_slurm(state: dict[str, Any]) -> list[str]:
    """Name the nodes that Slurm itself has drained: no person knows of it, and nothing brings them back."""
    found: dict[str, list[str]] = {}
    for node in state["nodes"]:
        reason = next((r for r in FAILED_FOR_SLURM if node.get("reason", "").startswith(r)), "")
        if reason and "DRAIN" in node.get("state", ""):
            found.setdefault(reason, []).append(node["name"])
    return [
        f"{_names(names)} drained by Slurm itself ({reason}): once slurmd's log there says why: "
        f"scontrol update NodeName={fold(names)} State=RESUME"
        for reason, names in found.items()
    ]


def _kept_out(job: dict[str, Any]) -> str:
    return (
        f"job {job['job']} of {job['user']} needs {job['needs']} nodes, and partition {job['partition']} has "
        f"{job['beside']} beside its standby pool: it waits for ever: lower standby.size in robust.yaml, then: "
        "systemctl reload srobustd"
    )


def _storm(state: dict[str, Any], now_s: float) -> list[str]:
    """Name the nodes of a storm of faults for an hour, except nodes that were drained or have gone."""
    storm = state.get("fault_storm")
    if not storm or now_s - storm["at_s"] > STORM_TOLD_S:
        return []
    struck = {*storm["nodes"]}
    nodes = [n["name"] for n in state["nodes"] if n["name"] in struck and not n["owner"]]
    what = ", ".join(storm["kinds"])
    seen = f"reported faults within a minute ({what}), and none was drained for it, since they share a cause"
    return (
        [f"{shortened(', '.join(nodes), 100)} {seen}: look for that, then type on each: srobust check"] if nodes else []
    )


def _blind(group: dict[str, Any]) -> str:
    who = "1 node cannot check its" if group["count"] == 1 else f"{group['count']} nodes cannot check their"
    return f"{who} GPUs: {shortened(group['nodes'], 100)}: {group['reason']}; type there: srobust doctor"


def _full(group: dict[str, Any]) -> str:
    first = group["reason"].partition(",")[0]
    who = "on 1 node" if group["count"] == 1 else f"on {group['count']} nodes"
    return f"{group['reason']} is full {who} ({shortened(group['nodes'], 100)}): there: df -h {first}; df -i {first}"


def _names(nodes: list[str]) -> str:
    more = ", …" if len(nodes) > 4 else ""
    return f"{nodes[0]} is" if len(nodes) == 1 else f"{len(nodes)} nodes ({', '.join(nodes[:4])}{more}) are"


def incident_of(job: Mapping[str, Any], incidents: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the incident that a running job is in; None if there is none.

    A job may first report that people are only alerted, and then claim: of these two rows of one name, the claim
    counts. An incident under way goes before a closed one, also if the daemon alone brings the job back.
    """

    def order(row: Mapping[str, Any]) -> tuple[bool, bool, bool]:
        return _under_way(row), row["id"] == job["incident"], row["outcome"] not in LEFT_ALONE

    mine = (i for i in incidents if i.get("job") == job.get("job") and job.get("incident"))
    return max((i for i in mine if i.get("id") == job["incident"] or _under_way(i)), key=order, default=None)


def _under_way(incident: Mapping[str, Any]) -> bool:
    return str(incident.get("state", "closed")) != "closed"


def outcome_of(job: dict[str, Any], state: dict[str, Any]) -> str:
    """Return the outcome of the incident that a running job is in; empty while it is open, or without an incident."""
    incident = incident_of(job, state["incidents"])
    return str(incident["outcome"]) if incident is not None else ""


def _left_alone(job: dict[str, Any], state: dict[str, Any]) -> bool:
    incident = incident_of(job, state["incidents"])
    if incident is None or not job.get("suspected_at_s") or incident["outcome"] not in LEFT_ALONE:
        return False
    # What the job suspects since then is not judged yet.
    return bool(job["suspected_at_s"] <= incident["opened_at_s"])


def _hangs(job: dict[str, Any], state: dict[str, Any], now_s: float) -> str:
    # A suspicion may begin long after the last step that the job has told of.
    since = duration(max(0.0, now_s - min(job["suspected_at_s"], job.get("step_at_s") or job["suspected_at_s"])))
    why = {"observed": "observe mode", "refused": "its claim was refused"}.get(outcome_of(job, state), "alert only")
    if why == "observe mode" and job.get("mode") == state.get("mode") == "act":
        why = BESIDE
    done = f"nothing is done about it ({why})"
    left_s = (job.get("acts_at_s") or 0.0) - now_s
    if why == "alert only" and left_s > 0:
        done = f"nothing is done about it for another {duration(left_s)} (the evidence is not sure enough)"
    incident = incident_of(job, state["incidents"]) or {}
    commands = hang_commands(str(job["job"]), f"{done}; {incident.get('reason', '')}")
    return f"job {job['job']} of {job['user']} has made no progress for {since}, and {done}: {commands}"


def _bad_loss(job: dict[str, Any], state: dict[str, Any]) -> bool:
    incident = incident_of(job, state["incidents"])
    if incident is None or incident["id"] != job["incident"] or incident["outcome"] not in LEFT_ALONE:
        return False
    return says_lost(str(incident.get("verdict", {}).get("why", "")))


def bad_loss_commands(job: str) -> str:
    """Return what to type about a job that trains on with a loss that is not finite."""
    return f"srobust incidents {job}; scancel {job} (ends it)"


def hang_commands(job: str, why_idle: str) -> str:
    """Return what to type about a job that hangs while nothing is done, for the reason `why_idle`."""
    commands = f"srobust incidents {job}; srobust stacks {job}"
    if BESIDE in why_idle:
        return commands  # the other sruns may train on
    end = f"scancel {job}" if "may not be requeued" in why_idle else f"scontrol requeue {job} (starts it anew)"
    return f"{commands}; {end}"
