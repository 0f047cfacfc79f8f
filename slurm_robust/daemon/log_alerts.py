"""Chooses the lines of the audit log that people are told of, and words them. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

from slurm_robust.core.model import BESIDE, REASON_PREFIX
from slurm_robust.daemon.api.needs import UNWRITABLE, bad_loss_commands, hang_commands
from slurm_robust.marks.remedy import untagged
from slurm_robust.notify.alert import Alert
from slurm_robust.policy.cluster.leaf_faults import MARK
from slurm_robust.policy.cluster.recovery_step import ENDED
from slurm_robust.slurm.client import Job
from slurm_robust.slurm.values import fold

NOT_RESUMED = ("recovery.given_up", "held.too_often")
"""The events that tell a failed recovery; the later line of its end (`recovery.not_started`) would be a repetition."""
STORMS = ("nodes.storm", "nodes.fault_storm")
STOPPED = "stopped: "
TROUBLE = "trouble "
"""The beginning of the keys of obstacles to the daemon's work."""
BREAKER_DONE = "nothing is drained or quarantined; jobs still get seats, without their suspects"
_BY_JOB = re.compile(r"\s*(?:\((?:seen as|since) job [^)]{1,40}\)|\[job \d{1,10}\])")
BREAKER_COMMAND = "srobust breaker; once the cause is known: srobust breaker reset"


def alert_of(at_s: float, what: str, text: str) -> Alert | None:
    """Return the alert that a line of the log is for people; None for most lines."""
    if what == "incident.closed" and not text.partition(": ")[2].startswith(STOPPED):
        return None
    make = _LINES.get("lemon" if what.startswith("lemon.") else what)
    return make(at_s, what, text) if make is not None else None


def _drained(at_s: float, _: str, text: str) -> Alert | None:
    if MARK in text:
        return None  # one message tells of all nodes of the switch
    node, _, reason = text.partition(": ")
    happened = f"Node {node} is out of service: {reason.removeprefix(REASON_PREFIX).strip()}"
    # The same fault, seen again by another job, is a repetition; another fault of the node is not.
    fault = _BY_JOB.sub("", untagged(reason)).strip()
    done = "no new job starts there; a job that runs there is not ended by this"
    return Alert(at_s, "drain", f"drain {node} {fault}", happened, node=node, done=done, command="srobust nodes")


def _opened(at_s: float, _: str, text: str) -> Alert:
    return breaker_open(at_s, text.partition("; nothing is drained")[0])


def _storm(at_s: float, what: str, text: str) -> Alert:
    return Alert(at_s, "storm", what, text, done="nothing is drained or requeued", command="srobust status")


def _leaf(at_s: float, what: str, text: str) -> Alert:
    done = "they are drained where a job or a check finds them unfit, and it counts as no failure of theirs"
    key = f"{what} {' '.join(sorted(re.findall(MARK + '([^ ]+)', text)))}"
    return Alert(at_s, "storm", key, text, done=done, command="srobust nodes --state drained")


def _lemon(at_s: float, _: str, text: str) -> Alert:
    node, _, why = text.partition(": ")
    happened = f"Node {node} fails more often than others: {why}"
    return Alert(at_s, "lemon", f"lemon {node}", happened, node=node, command="srobust nodes")


def _blind(at_s: float, what: str, text: str) -> Alert:
    return Alert(
        at_s, "blind", what, text, done="jobs start there all the same", command="srobust doctor, on one of them"
    )


def _full(at_s: float, what: str, text: str) -> Alert:
    done = "jobs that write there end with an error, and none of them is restarted"
    return Alert(at_s, "full", what, text, done=done, command="df -h, on one of them")


def _rebooted(at_s: float, what: str, text: str) -> Alert:
    names = text.split(": ")[1]
    command = f"scontrol update NodeName={names} State=RESUME"
    return Alert(at_s, "drain", f"{what} {names}", text, done="no job starts there", command=command)


def _takeover(at_s: float, what: str, text: str) -> Alert:
    happened = text[0].upper() + text[1:]
    return Alert(at_s, "takeover", what, happened, command="srobust status, on both hosts")


def _error(at_s: float, what: str, text: str) -> Alert:
    happened = f"The daemon has an error of its own: {text}"
    return Alert(at_s, "daemon_error", what, happened, done="it goes on", command="journalctl -u srobustd")


def _not_resumed(at_s: float, _: str, text: str) -> Alert:
    return _of_incident(at_s, "not_resumed", "was not brought back", text)


def back_or_gone(alert: Alert, job: Job | None, now_s: float) -> Alert | None:
    """Return the alert that a job which was not brought back runs again, or is gone; None while it waits."""
    if job is not None and job.state not in ENDED:
        began = job.state == "RUNNING" and job.start_at_s >= int(alert.at_s)
        said = f"runs again on {fold(job.nodes)}" if began else ""
    else:
        said = f"has ended ({job.state})" if job is not None else "has ended"
    happened = f"Job {alert.job}, which was not brought back, {said}"
    return Alert(now_s, "over", alert.key, happened, job=alert.job, command=alert.command) if said else None


def _vanished(at_s: float, what: str, text: str) -> Alert:
    return Alert(at_s, "not_resumed", f"{what} {text[:80]}", text, done="nothing", command="srobust status")


def _hangs(at_s: float, _: str, text: str) -> Alert:
    key, _, said = text.partition(": ")
    done, _, since = said.partition(", since ")
    job = key.partition(".")[0]
    happened = f"{'An srun of job' if BESIDE in done else 'Job'} {job} hangs since {since}"
    return Alert(at_s, "hang", hang_key(key), happened, job=job, done=done, command=hang_commands(job, text))


def _moves(at_s: float, _: str, text: str) -> Alert:
    key, _, said = text.partition(": ")
    job = key.partition(".")[0]
    happened, command = f"Job {job} does not hang any more: {said}", f"srobust incidents {job}"
    return Alert(at_s, "over", hang_key(key), happened, job=job, command=command)


def _bad_loss(at_s: float, _: str, text: str) -> Alert:
    key, _, said = text.partition(": ")
    done, _, why = said.partition(": ")
    job = key.partition(".")[0]
    happened = f"Job {job} goes on with a loss that is not finite: {why}"
    # Each attempt of a job may come to it again.
    return Alert(at_s, "bad_loss", f"bad_loss {job}", happened, job=job, done=done, command=bad_loss_commands(job))


def hang_key(key: str) -> str:
    """Return the key of a hang's alert, and of the alert that the hang is over."""
    return f"hang {key}"


def _stopped(at_s: float, _: str, text: str) -> Alert:
    # A script may start several runs, and handle their ends: the job may go on, and one message is enough.
    found = _of_incident(at_s, "stop", "had a run that ended and is not started again", text.replace(STOPPED, "", 1))
    return msgspec.structs.replace(found, key=f"stop {found.job}")


_LINES: dict[str, Callable[[float, str, str], Alert | None]] = {
    "node.drained": _drained,
    "nodes.leaf_switch": _leaf,
    "breaker.open": _opened,
    "lemon": _lemon,
    "nodes.blind": _blind,
    "nodes.full": _full,
    "nodes.rebooted": _rebooted,
    "training.vanished": _vanished,
    "training.hangs": _hangs,
    "training.moves": _moves,
    "training.bad_loss": _bad_loss,
    "lease.taken": _takeover,
    "lease.lost": _takeover,
    "daemon.error": _error,
    "incident.closed": _stopped,
    **dict.fromkeys(STORMS, _storm),
    **dict.fromkeys(NOT_RESUMED, _not_resumed),
}
"""First word of a line → its alert; `lemon` for every word that begins so."""


def _of_incident(at_s: float, event: str, outcome: str, text: str) -> Alert:
    """Return the alert of `KEY: reason`: the key begins with the job's id."""
    key, _, reason = text.partition(": ")
    job = key.removeprefix("job ").partition(".")[0]
    command = f"srobust incidents {job}"
    return Alert(at_s, event, f"{event} {key}", f"Job {job} {outcome}: {reason}", job=job, command=command)


def breaker_open(at_s: float, why: str) -> Alert:
    """Return the alert of an open breaker: said once, then repeated while it is open."""
    happened = f"The breaker is open: {why}"
    return Alert(at_s, "breaker", "breaker", happened, done=BREAKER_DONE, command=BREAKER_COMMAND)


def trouble(at_s: float, topic: str, sentence: str) -> Alert:
    """Something keeps the daemon from its work; the sentence ends with the command to type."""
    happened, _, command = sentence.rpartition(": ")
    return Alert(at_s, "daemon_error", trouble_key(topic, sentence), happened or sentence, command=command)


def trouble_key(topic: str, sentence: str) -> str:
    """Return the key of a trouble's alert: one for all that fails because the state folder cannot be written."""
    unwritable = UNWRITABLE in sentence or "disk is full" in sentence
    return f"{TROUBLE}{'disk' if unwritable else topic}"
