"""Collects the facts that the policy judges, beside the verdict, into its `Situation`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from slurm_robust.core.model import Failure, Verdict
from slurm_robust.localize.evidence import RankExit
from slurm_robust.localize.failure import DISK_FULL, disk_path
from slurm_robust.policy.job.code_versions import CodeState
from slurm_robust.policy.job.situation import JobFacts, Situation
from slurm_robust.supervise.incident import full_disk
from slurm_robust.supervise.incident.ladder_state import ladder_options, standby_nodes
from slurm_robust.supervise.job import asks_no_kill, batch_script
from slurm_robust.supervise.launch.srun_command import named_hosts
from slurm_robust.supervise.lineage.attempt_start import AttemptStart
from slurm_robust.supervise.session import Session
from slurm_robust.supervise.watch.attempt_state import AttemptState
from slurm_robust.supervise.watch.fault_watch import nodes_in_use

_NEW_OUTAGE_S = 60.0
"""How long an outage is waited for before the training has made any progress."""


def first_exit(attempt: AttemptState) -> RankExit | None:
    """Return the end of the rank that ended first; None if no rank ended."""
    return min(attempt.exits.values(), key=lambda e: e.at_s, default=None)


def named_nodes(session: Session, candidates: Iterable[str]) -> frozenset[str]:
    """Return the nodes that the command or the environment names: the program cannot run without them."""
    command = session.command
    if session.channel is None or command is None:
        return frozenset()
    return frozenset(n for n in candidates if named_hosts(command, session.environment, [n]))


async def read_situation(
    session: Session,
    attempt: AttemptState,
    start: AttemptStart,
    verdict: Verdict,
    *,
    failure: Failure | None,
    dead_nodes: Sequence[str],
) -> Situation:
    """Describe a silent attempt to the policy; the caller sets the bad loss, `ended` and `action_limit_reached`.

    `failure` is None if it cannot be compared with others. `dead_nodes` are nodes that Slurm calls down, or that Slurm
    calls not responding and whose agent does not answer either.
    """
    job, settings, fleet, nodes = session.job.info, session.settings, attempt.fleet, session.allocation.nodes
    command = session.command if session.channel is not None else None
    used = set(fleet.rank_nodes.values()) or set(nodes)
    faulty = session.node_faults.faulty(nodes, nodes_in_use(session, attempt)).all
    candidates = {s.node for s in verdict.suspects}.union(dead_nodes, faulty)
    unusable = used.union(session.allocation.silent_nodes, dead_nodes, faulty)
    known = start.remembered().until(attempt.step)
    return Situation(
        verdict=verdict,
        allocation_nodes=tuple(nodes),
        training_node_count=fleet.step_nodes or len(used),
        training_nodes=tuple(sorted(used)),
        # A watch from outside cannot relaunch the step, so no road inside the allocation is open to it.
        healthy_spares=tuple(n for n in nodes if n not in unusable) if command is not None else (),
        dead_nodes=tuple(dead_nodes),
        batch_node=job.batch_host,
        excluded_named=named_nodes(session, candidates),
        faulty_nodes=faulty,
        over=session.srun_exit_code is not None or not fleet.alive,
        exit_code=_exit_code(session, attempt),
        failure=failure,
        earlier_failures=known.failures,
        older_failures=known.older,
        restarts_in_place=known.restarts_in_place,
        fruitless=start.fruitless,
        fruitless_limit=settings.fruitless_attempts,
        # A wrong name or address in a new program looks like an outage: a person waits for that answer.
        outage_wait_s=settings.outage_wait_s if start.at_stake() else min(settings.outage_wait_s, _NEW_OUTAGE_S),
        full_disk=await _full_disk(session, attempt, failure),
        failed_launches=start.failed_launches,
        failed_launches_limit=settings.fruitless_launches_per_hour,
        resumes=start.resumes(),
        at_stake=start.at_stake(),
        job=JobFacts(
            requeueable=job.requeueable,
            het_job=bool(job.hetjob_id) or job.ref.het_offset is not None,
            requeued=job.restart_count > 0,
            survives_node_failure=bool(session.environment.get("SLURM_NO_KILL")) or asks_no_kill(batch_script()),
        ),
        mode=session.config.mode,
        outside=command is None,
        code=known.code if session.code is not None else CodeState(),
        ladder=known.ladder,
        ladder_options=ladder_options(session, attempt),
        standby_nodes=await standby_nodes(session),
        now_s=session.clock.now_s(),
    )


def _exit_code(session: Session, attempt: AttemptState) -> int | None:
    """Return the program's own exit code: srun's, or that of the first rank that ended while others still run."""
    if session.srun_exit_code is not None:
        return session.srun_exit_code
    first = first_exit(attempt)
    if first is None:
        return None
    return 128 + first.signal if first.signal else first.exit_code


async def _full_disk(session: Session, attempt: AttemptState, failure: Failure | None) -> str:
    """Return which disk is full now, if ranks reported a full disk; empty if there is room."""
    if failure is None or failure.signature != DISK_FULL:
        return ""
    command = session.attached.arguments if session.attached is not None else ()
    if session.command is not None:
        command = session.command.command
    named = disk_path(attempt.exits.values(), session.rules)
    return await full_disk.full(named, attempt.resume_point.path, session.checkpoint_dir, command)
