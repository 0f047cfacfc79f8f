"""What prolog, epilog and health check do with a report: let the job start, or drain this node by the daemon's leave.

A fit node costs no call to Slurm. An unfit one costs one read; where that gave leave, or the site has no daemon and
chose `nodecheck.alone: drain`, a moment's wait of its own length, one count of the nodes that are out, and one drain;
the calls together within `nodecheck.leave_timeout_s`. Whatever goes wrong on the way lets the job start.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from slurm_robust.config import BreakerConfig, Config, SlurmConfig
from slurm_robust.drain_permit import of_daemon, parse_leave, parse_most
from slurm_robust.model import REASON_PREFIX, JobRef, Mode, job_tag
from slurm_robust.nodecheck.engine.finding import SENTENCE_MAX_CHARS, Fitness, Report, shorten
from slurm_robust.policy.cluster.breaker import Drain, over_limit
from slurm_robust.slurm.client import Node, SlurmClient

EXIT_REFUSE = 20
"""The check's exit code by which the scripts know to exit 1; no crash of Python or of a shell ends with it."""


SPREAD_S = 1.5
"""Unfit nodes wait up to so long, each another time, before they count and drain: the job cannot start here anyway."""


_NOT_YET_THERE = frozenset({"NOT_RESPONDING", "POWERING_UP", "REBOOT_ISSUED"})


@dataclass(frozen=True)
class Decision:
    """What to do.

    Attributes:
        refuse: The script exits 1: in a prolog the job is put back and runs elsewhere.
        drain_reason: Drain this node with it first; empty leaves the node as it is.
        line: For the log; empty where there is nothing to say.
    """

    refuse: bool
    drain_reason: str
    line: str


def decide(
    report: Report, mode: Mode, node: Node | None, now_s: float, job_id: int | None = None, *, alone: bool = False
) -> Decision:
    """What an unfit node's report comes to, given how Slurm sees the node (None: Slurm does not know it).

    A node that is drained already stays as it is, whoever did it, and no job is started on it: the reason that stands
    there is kept, and a job that was on its way before the drain goes elsewhere. A reason on a node that is not
    drained says nothing: Slurm 24.11 leaves the text of the last drain there when a node is resumed.

    A prolog's reason names the job (`job_id`) that is put back: where Slurm holds that, the daemon knows why. With
    `alone` (`nodecheck.alone: drain`) a node of which no daemon has ever said anything needs no leave.
    """
    said = shorten(report.sentence, 160)
    if mode is not Mode.ACT:
        return Decision(False, "", f"observe: would drain {report.node}: {said}")
    if node is None:
        return Decision(False, "", f"{report.node} is unfit, and Slurm knows no such node: {said}")
    if parse_leave(node.comment, now_s) is None and not (alone and not of_daemon(node.comment)):
        why = "srobustd gives no leave to drain it"
        if not of_daemon(node.comment):
            why = "has no leave to be drained: no srobustd has been here, and nodecheck.without_daemon is report"
        return Decision(False, "", f"{report.node} is unfit, and {why}: {said}")
    if node.drained:
        # Only a prolog has a job to keep away.
        refuse = report.stage == "prolog"
        return Decision(refuse, "", f"{report.node} is unfit, and drained already ({node.reason}): {said}")
    if report.stage == "periodic" and (node.state == "UNKNOWN" or node.flags & _NOT_YET_THERE):
        # slurmd makes its first health check before it registers, on a machine that is still coming up.
        return Decision(False, "", f"{report.node} is unfit, and slurmd has not registered it yet: {said}")
    reason = shorten(f"{REASON_PREFIX} {report.sentence}")
    if report.stage == "prolog" and job_id is not None:
        tag = job_tag(job_id)
        reason = f"{shorten(reason, SENTENCE_MAX_CHARS - len(tag) - 1)} {tag}"
    return Decision(True, reason, f"draining {report.node}: {said}")


def alone_crowded(nodes: Iterable[Node], name: str, config: BreakerConfig, now_s: float) -> str:
    """Why the node `name` may not go out now where there is no daemon, or an empty text.

    The breaker's own bounds, over the nodes that Slurm shows drained with our reason; to resume them is the reset.
    """
    nodes = list(nodes)
    drains = [
        Drain(node.name, node.reason_at_s or now_s)
        for node in nodes
        if node.drained and node.reason.strip().startswith(REASON_PREFIX)
    ]
    names = {partition for node in nodes for partition in node.partitions}
    partitions = {p: frozenset(node.name for node in nodes if p in node.partitions) for p in names}
    return over_limit(drains, partitions, config, now_s=now_s, more=frozenset({name}))


def crowded(nodes: Iterable[Node], most: int) -> str:
    """Why no more nodes may go out now, or an empty text.

    The breaker's bound, counted here: hundreds that fail at once would all be drained before the daemon has looked.
    """
    out = sum(1 for node in nodes if node.drained and node.reason.strip().startswith(REASON_PREFIX))
    return f"{out} nodes are out already, and srobustd gives leave while fewer than {most} are" if out >= most else ""


Connect = Callable[[SlurmConfig], SlurmClient]


def _connect(config: SlurmConfig) -> SlurmClient:
    from slurm_robust.slurm.commands import CommandClient  # noqa: PLC0415 (only an unfit node pays for it)

    return CommandClient(config)


def act(
    report: Report,
    config: Config,
    log: Callable[[str], None],
    connect: Connect = _connect,
    *,
    job_id: int | None = None,
) -> int:
    """Carry the decision out; never raises. `job_id`: the job that starts or ends here, where there is one.

    Returns:
        `EXIT_REFUSE` where the script must exit 1, else 0.
    """
    if report.verdict is Fitness.FIT:
        return 0
    if report.verdict is Fitness.UNKNOWN:
        log(f"{report.node}: could not tell, the job may start: {report.sentence}")
        return 0
    if config.mode is not Mode.ACT:
        log(decide(report, config.mode, None, 0.0).line)
        return 0
    end_s = time.monotonic() + config.nodecheck.permit_timeout_s
    alone = config.nodecheck.without_daemon == "drain"
    try:
        node = connect(_until(config.slurm, end_s)).node(report.node)
        decision = decide(report, config.mode, node, time.time(), job_id, alone=alone)
        if decision.drain_reason and node is not None and _counts(node):
            # So that of many at once the later ones see the earlier ones' drains.
            pause_s = random.uniform(0, SPREAD_S)  # noqa: S311 (no secret)
            time.sleep(pause_s)
            end_s += pause_s
            nodes = connect(_until(config.slurm, end_s)).nodes()
            now = next((n for n in nodes if n.name == report.node), None)
            decision = decide(report, config.mode, now, time.time(), job_id, alone=alone)
            if decision.drain_reason and now is not None and (why := _too_many(now, nodes, config.breaker)):
                decision = Decision(False, "", f"{report.node} is unfit, and is not drained: {why}: {report.sentence}")
        log(decision.line)
        if decision.drain_reason:
            connect(_until(config.slurm, end_s)).drain(report.node, decision.drain_reason)
    except Exception as error:  # noqa: BLE001 (a fault of ours or of Slurm never holds a launch)
        log(f"{report.node} is unfit, and Slurm could not be asked or told ({error}): {report.sentence}")
        return 0
    return EXIT_REFUSE if decision.refuse and report.stage != "periodic" else 0


def _counts(node: Node) -> bool:
    """True where this node counts for itself: its leave names a bound, or it has no leave and acts alone."""
    return parse_most(node.comment) is not None or not of_daemon(node.comment)


def _too_many(node: Node, nodes: list[Node], config: BreakerConfig) -> str:
    most = parse_most(node.comment)
    return alone_crowded(nodes, node.name, config, time.time()) if most is None else crowded(nodes, most)


def _until(config: SlurmConfig, end_s: float) -> SlurmConfig:
    """The same with what is left of the time as the deadline of one command."""
    return msgspec.structs.replace(config, timeout_s=max(0.1, round(end_s - time.monotonic(), 2)))


def tell_job(report: Report, config: Config, env: Mapping[str, str], connect: Connect = _connect) -> str:
    """Write the verdict into the surrounding job's Comment, for the daemon's recheck.

    Returns:
        What went wrong, in words; empty where it was written.
    """
    job, array, task = (env.get(f"SLURM_{name}", "") for name in ("JOB_ID", "ARRAY_JOB_ID", "ARRAY_TASK_ID"))
    if not job.isdigit():
        return "SLURM_JOB_ID names no job: --tell-slurm is for use inside one"
    in_array = array.isdigit() and task.isdigit()
    ref = JobRef(int(job), int(array), int(task)) if in_array else JobRef(int(job))
    try:
        connect(config.slurm).update_job(ref, comment=comment_of(report))
    except Exception as error:  # noqa: BLE001 (best effort; the exit code says the verdict as well)
        return f"the job's comment could not be written: {error}"
    return ""


def comment_of(report: Report) -> str:
    """The verdict as it stands in a recheck job's Comment."""
    return f"srobust-check: {report.verdict.value}: {shorten(report.sentence)}"
