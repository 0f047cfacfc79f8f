"""Decides what prolog, epilog, health check and node watch do with a report: nothing, or drain the node by permit.

A fit node costs no call to Slurm. An unfit node costs one read. If that shows a drain permit, or if the site has no
daemon and chose `nodecheck.without_daemon: drain`, the node pauses for a random moment, counts the drained nodes, and
drains itself; the calls together take at most `nodecheck.permit_timeout_s`. Any error lets the job start.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from slurm_robust.config.site import BreakerConfig, Config, SlurmConfig
from slurm_robust.core.model import REASON_PREFIX, JobRef, Mode, job_tag
from slurm_robust.marks import blind_marker, fault_marker, watch_marker
from slurm_robust.marks.blind_marker import BlindMarker
from slurm_robust.marks.drain_permit import of_daemon, parse
from slurm_robust.marks.fault_marker import FaultMarker
from slurm_robust.marks.remedy import tagged
from slurm_robust.nodecheck.catalogue import remedies
from slurm_robust.nodecheck.engine.finding import SENTENCE_MAX_CHARS, Fitness, NodeReport, shorten
from slurm_robust.policy.cluster.breaker import Drain, over_limit
from slurm_robust.slurm.client import Node, SlurmClient

SLURM_CALLS: Mapping[str, str] = {
    "node": "an unfit node reads how Slurm sees it",
    "nodes": "it counts the nodes that are drained, before it drains itself",
    "drain": "it drains itself, with a permit or on a site without a daemon",
    "set_node_extra": "for the daemon: the node watch marks a fault and its mode, the health check what it lacks",
    "update_job": "`srobust check --tell-slurm` writes the verdict into the Comment of the job in which it runs",
}
"""All calls to Slurm of the node checks and their scripts, all in this file; reading and counting change nothing.
tests/nodecheck/test_node_script_slurm_calls.py fails for any other call."""

EXIT_REFUSE = 20
"""Exit code of the check that tells the scripts to exit 1; no crash of Python or of a shell ends with it."""

SPREAD_S = 1.5
"""Unfit nodes pause for a random time up to this before they count and drain: the job cannot start here anyway."""

_NOT_YET_THERE = frozenset({"NOT_RESPONDING", "POWERING_UP", "REBOOT_ISSUED"})


@dataclass(frozen=True)
class Decision:
    """The decision about an unfit node.

    Attributes:
        refuse: Whether the script exits 1: in a prolog the job is then put back and runs elsewhere.
        drain_reason: Drain this node with this reason first; empty: leave the node as it is.
        line: The line for the log.
    """

    refuse: bool
    drain_reason: str
    line: str


def decide(
    report: NodeReport, mode: Mode, node: Node | None, now_s: float, job_id: int | None = None, *, alone: bool = False
) -> Decision:
    """Decide what to do about an unfit node, given its state in Slurm (None: Slurm does not know the node).

    A node that is already drained stays as it is: its reason is kept, no job is started on it, and a job that was
    scheduled before the drain goes elsewhere. A reason on a node that is not drained means nothing: Slurm 24.11 keeps
    the text of the last drain when a node is resumed.

    A prolog's drain reason names the job (`job_id`) that Slurm puts back, so that the daemon knows why Slurm holds it.
    With `alone` (`nodecheck.without_daemon: drain`) a node that no daemon has ever marked needs no permit.
    """
    why = shorten(report.sentence, 160)
    if mode is not Mode.ACT:
        return Decision(False, "", f"observe: would drain {report.node}: {why}")
    if node is None:
        return Decision(False, "", f"{report.node} is unfit, but Slurm does not know this node: {why}")
    if parse(node.comment, now_s) is None and not (alone and not of_daemon(node.comment)):
        lack = "it has no drain permit from srobustd"
        if not of_daemon(node.comment):
            lack = "it has no drain permit: no srobustd manages it, and nodecheck.without_daemon is report"
        return Decision(False, "", f"{report.node} is unfit, but is not drained: {lack}: {why}")
    if node.drained:
        # Only a prolog has a job to keep away.
        refuse = report.stage == "prolog"
        return Decision(refuse, "", f"{report.node} is unfit, and is already drained ({node.reason}): {why}")
    if report.stage == "periodic" and (node.state == "UNKNOWN" or node.flags & _NOT_YET_THERE):
        # slurmd runs its first health check before it registers, on a machine that is still booting.
        return Decision(False, "", f"{report.node} is unfit, but slurmd has not registered it yet: {why}")
    job = f" {job_tag(job_id)}" if report.stage == "prolog" and job_id is not None else ""
    sentence = shorten(f"{REASON_PREFIX} {report.sentence}")
    reason = tagged(sentence, remedies.of_report(report), SENTENCE_MAX_CHARS - len(job)) + job
    return Decision(True, reason, f"draining {report.node}: {why}")


def _drained_by_us(nodes: Iterable[Node]) -> list[Node]:
    return [node for node in nodes if node.drained and node.reason.strip().startswith(REASON_PREFIX)]


def over_breaker_limit(nodes: list[Node], name: str, config: BreakerConfig, now_s: float) -> str:
    """Return why the node `name` may not be drained now, or an empty text, on a site without a daemon.

    The breaker's own limits apply to the nodes that Slurm shows drained with our reason; resuming such nodes resets the
    breaker.
    """
    drains = [Drain(node.name, node.reason_at_s or now_s) for node in _drained_by_us(nodes)]
    names = {partition for node in nodes for partition in node.partitions}
    partitions = {p: frozenset(node.name for node in nodes if p in node.partitions) for p in names}
    return over_limit(drains, partitions, config, now_s=now_s, more=frozenset({name}))


def over_permit(nodes: Iterable[Node], most: int) -> str:
    """Return why a permit with this bound allows no drain now, or an empty text.

    Nodes check the bound themselves: hundreds of nodes that fail at once would all be drained before the daemon's next
    poll.
    """
    drained = len(_drained_by_us(nodes))
    return f"{drained} nodes are drained by us, and its permit allows fewer than {most}" if drained >= most else ""


Connect = Callable[[SlurmConfig], SlurmClient]


def _connect(config: SlurmConfig) -> SlurmClient:
    from slurm_robust.slurm.commands import CommandClient  # noqa: PLC0415 (only an unfit node needs it)

    return CommandClient(config)


def act(
    report: NodeReport,
    config: Config,
    log: Callable[[str], None],
    connect: Connect = _connect,
    *,
    job_id: int | None = None,
) -> int:
    """Decide and carry out the decision; never raise. `job_id`: the job that starts or ends here, if there is one.

    Returns:
        `EXIT_REFUSE` if the script must exit 1, else 0.
    """
    if report.verdict is Fitness.FIT:
        return 0
    if report.verdict is Fitness.UNKNOWN:
        log(f"{report.node}: could not be checked, the job may start: {report.sentence}")
        return 0
    if config.mode is not Mode.ACT:
        log(decide(report, config.mode, None, 0.0).line)
        return 0
    end_s = time.monotonic() + config.nodecheck.permit_timeout_s
    try:
        node = connect(_until(config.slurm, end_s)).node(report.node)
        decision = _drain(_Call(report, config, log, connect, job_id), node, end_s)
    except Exception as error:  # noqa: BLE001 (neither our own errors nor Slurm's may stop a job from starting)
        log(f"{report.node} is unfit, but Slurm could not be reached ({error}): {report.sentence}")
        return 0
    return EXIT_REFUSE if decision.refuse and report.stage != "periodic" else 0


@dataclass(frozen=True)
class _Call:
    """The arguments of this program's call; `only_idle`: drain no node that has jobs."""

    report: NodeReport
    config: Config
    log: Callable[[str], None]
    connect: Connect
    job_id: int | None = None
    only_idle: bool = False


class JobStartedError(Exception):
    """A job has started on the node that was to be drained while it was idle."""


def _drain(call: _Call, node: Node | None, end_s: float) -> Decision:
    """Decide by how Slurm shows the node, and drain it where that is the decision."""
    report, config, connect = call.report, call.config, call.connect
    alone = config.nodecheck.without_daemon == "drain"
    decision = decide(report, config.mode, node, time.time(), call.job_id, alone=alone)
    if decision.drain_reason and node is not None and _counts(node):
        # A random pause, so that of many nodes at once the later ones see the drains of the earlier ones.
        pause_s = random.uniform(0, SPREAD_S)  # noqa: S311 (no secret)
        time.sleep(pause_s)
        end_s += pause_s
        nodes = connect(_until(config.slurm, end_s)).nodes()
        now = next((n for n in nodes if n.name == report.node), None)
        if call.only_idle and now is not None and now.busy:
            raise JobStartedError(report.node)
        decision = decide(report, config.mode, now, time.time(), call.job_id, alone=alone)
        if decision.drain_reason and now is not None and (why := _over_limit(now, nodes, config.breaker)):
            decision = Decision(False, "", f"{report.node} is unfit, but is not drained: {why}: {report.sentence}")
    call.log(decision.line)
    if decision.drain_reason:
        connect(_until(config.slurm, end_s)).drain(report.node, decision.drain_reason)
    return decision


def tell_fault(
    report: NodeReport,
    marker: FaultMarker,
    config: Config,
    log: Callable[[str], None],
    connect: Connect = _connect,
) -> None:
    """Do what the node watch must do about an unfit node; may be called again after any error.

    The fault is marked for the daemon, which brings the node's jobs back and drains the node: nodes that fail in the
    same second do not see each other's drains. On a node with jobs, a fault is marked only if the jobs cannot go on
    with it; a node without jobs is marked if a valid permit says that a daemon is alive. Otherwise the decision is that
    of prolog and health check.

    Raises:
        Exception: Slurm could not be asked, or a job has started meanwhile; nothing was changed.
    """
    if config.mode is not Mode.ACT:
        log(f"observe: would tell Slurm that {report.node} is unfit: {report.sentence}")
        return
    end_s = time.monotonic() + config.nodecheck.permit_timeout_s
    node = connect(_until(config.slurm, end_s)).node(report.node)
    if node is None or not (node.busy or _daemon_drains(node)):
        _drain(_Call(report, config, log, connect, only_idle=True), node, end_s)
    elif node.busy and marker.spares_jobs:
        log(f"{report.node} is unfit, and has jobs that can go on: {report.sentence}")
    elif not of_daemon(node.comment):
        # Nobody would read the marker: the site's choice for nodes without a daemon holds.
        _drain(_Call(report, config, log, connect), node, end_s)
    elif why := _unmarkable(node):
        log(f"{report.node} is unfit, and its fault is not marked: {why}: {report.sentence}")
    else:
        whole = fault_marker.joined(marker, fault_marker.parse(node.extra))
        log(f"marking the fault of {report.node}, for srobustd: {report.sentence}")
        text = fault_marker.render(whole, node.extra)
        if text != node.extra:
            connect(_until(config.slurm, end_s)).set_node_extra(report.node, text)


def tell_blind(
    name: str, reason: str, config: Config, connect: Connect = _connect, *, kind: str = blind_marker.BLIND
) -> str:
    """Mark for the daemon that this node cannot check its GPUs, in observe mode too; an empty reason: it can again.

    With the kind `blind_marker.FULL`: that the file systems that `reason` names are full.

    Returns:
        Why nothing could be written; empty if the marker is as it should be.
    """
    end_s = time.monotonic() + config.nodecheck.permit_timeout_s
    try:
        node = connect(_until(config.slurm, end_s)).node(name)
        if node is None:
            return "Slurm does not know this node"
        if _has_json(node.extra):
            return "its Extra field has JSON, by which jobs may be scheduled"
        now_s, there = time.time(), blind_marker.parse(node.extra, kind)
        text = blind_marker.without(node.extra, kind)
        if reason:
            text = blind_marker.render(BlindMarker(int(now_s), reason), node.extra, kind)
            new = blind_marker.parse(text, kind)
            if there is not None and blind_marker.says_as_much(there, new, now_s, node.boot_at_s):
                return ""
        if text != node.extra and (reason or blind_marker.marked(node.extra, kind)):
            connect(_until(config.slurm, end_s)).set_node_extra(name, text)
    except Exception as error:  # noqa: BLE001 (as in `act`)
        return f"Slurm could not be reached ({error})"
    return ""


def tell_mode(name: str, config: Config, connect: Connect = _connect) -> str:
    """Mark for the daemon in which mode this node's watch is, in observe mode too; nothing if that is known.

    Returns:
        Why it could not be written; empty if it stands there, or if the field has JSON, which stays as it is.
    """
    from slurm_robust.core.build import build  # noqa: PLC0415 (the prolog does not need it)

    end_s = time.monotonic() + config.nodecheck.permit_timeout_s
    try:
        node = connect(_until(config.slurm, end_s)).node(name)
        if node is None:
            return "Slurm does not know this node"
        text = watch_marker.render(config.mode.value, node.extra, build())
        known = (watch_marker.parse(node.extra), watch_marker.parse_build(node.extra))
        if known != (config.mode.value, build()) and not _has_json(node.extra):
            connect(_until(config.slurm, end_s)).set_node_extra(name, text)
    except Exception as error:  # noqa: BLE001 (as in `act`)
        return f"Slurm could not be reached ({error})"
    return ""


def _has_json(extra: str) -> bool:
    """Return whether a person's own text in `Extra` is JSON, by which jobs may be scheduled: it is left alone."""
    own = fault_marker.without(blind_marker.without(watch_marker.without(extra)))
    return blind_marker.without(own, blind_marker.FULL).startswith("{")


def _daemon_drains(node: Node) -> bool:
    """Return whether a daemon that is alive would read a marker on this node without jobs, and may drain it."""
    return parse(node.comment, time.time()) is not None and not node.drained and not _unmarkable(node)


def _unmarkable(node: Node) -> str:
    """Return why no marker is written on this node, or an empty text."""
    if node.drained and not node.reason.strip().startswith(REASON_PREFIX):
        return f"somebody has taken the node out of service ({node.reason})"
    if _has_json(node.extra):
        return "its Extra field has JSON, by which jobs may be scheduled"
    return ""


def _most(node: Node) -> int | None:
    permit = parse(node.comment, time.time())
    return permit.most if permit else None


def _counts(node: Node) -> bool:
    """Return whether this node checks the limits itself: its permit names a bound, or no daemon manages it."""
    return _most(node) is not None or not of_daemon(node.comment)


def _over_limit(node: Node, nodes: list[Node], config: BreakerConfig) -> str:
    most = _most(node)
    return over_breaker_limit(nodes, node.name, config, time.time()) if most is None else over_permit(nodes, most)


def _until(config: SlurmConfig, end_s: float) -> SlurmConfig:
    """Return the configuration with the remaining time as the timeout of one command."""
    return msgspec.structs.replace(config, timeout_s=max(0.1, round(end_s - time.monotonic(), 2)))


def tell_job(report: NodeReport, config: Config, env: Mapping[str, str], connect: Connect = _connect) -> str:
    """Write the verdict into the surrounding job's Comment, for the daemon's recheck.

    Returns:
        Why it could not be written; empty if it was.
    """
    job, array, task = (env.get(f"SLURM_{name}", "") for name in ("JOB_ID", "ARRAY_JOB_ID", "ARRAY_TASK_ID"))
    if not job.isdigit():
        return "SLURM_JOB_ID names no job: --tell-slurm works only inside a job"
    in_array = array.isdigit() and task.isdigit()
    ref = JobRef(int(job), int(array), int(task)) if in_array else JobRef(int(job))
    try:
        connect(config.slurm).update_job(ref, comment=comment_of(report))
    except Exception as error:  # noqa: BLE001 (best effort; the exit code carries the verdict too)
        return f"the job's comment could not be written: {error}"
    return ""


def comment_of(report: NodeReport) -> str:
    """Return the verdict in the form of a recheck job's Comment."""
    sentence = tagged(shorten(report.sentence), remedies.of_report(report), SENTENCE_MAX_CHARS)
    return f"srobust-check: {report.verdict.value}: {sentence}"
