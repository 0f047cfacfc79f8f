"""Begins recoveries that no job asked for: the daemon itself has seen that a node is lost, or at fault."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from slurm_robust.core.model import Conclusion, Grade, Suspect, Verdict
from slurm_robust.daemon.context import DaemonContext
from slurm_robust.daemon.controllers.recovery.claim_intake import ClaimIntake
from slurm_robust.daemon.controllers.recovery.incident_rows import incident_key, new_row
from slurm_robust.daemon.controllers.recovery.recoveries import Recoveries
from slurm_robust.daemon.store.journal import IncidentRow
from slurm_robust.marks.remedy import Remedy
from slurm_robust.policy.cluster.recovery_plan import Recovery, RecoveryRequest, Refusal, plan
from slurm_robust.slurm.client import Job


@dataclass(frozen=True)
class Unasked:
    """The reason for bringing a job back that did not ask.

    Attributes:
        kind: `node_lost` or `node_fault`.
        name: The name of the incident, unique for the job's attempt.
        job: The job, read just now.
        nodes: The nodes of the job that the next attempt must not use.
        reason: The reason as a sentence.
        suspects_to: The treatment of these nodes, as in `RecoveryRequest`.
        fault_at_s: When the fault was seen.
        remedy: The repair of these nodes, as in `RecoveryRequest`.
    """

    kind: str
    name: str
    job: Job
    nodes: Sequence[str]
    reason: str
    suspects_to: str
    fault_at_s: float
    remedy: Remedy | None = None


def begin(context: DaemonContext, intake: ClaimIntake, recoveries: Recoveries, asked: Unasked) -> None:
    """Plan the job's way back within the caps, and start it; a refusal, or observe mode, is only written down."""
    job, key, now_s = asked.job, incident_key(asked.job, asked.name), context.now_s()
    earlier = context.journal.evicted(job.ref.job_id, job.user)
    request = RecoveryRequest(
        asked.kind,
        job,
        asked.nodes,
        asked.reason,
        suspects_to=asked.suspects_to,
        earlier=earlier,
        remedy=asked.remedy,
    )
    refusal = recoveries.caps.refusal(job)
    decision = refusal or plan(request, recoveries.cluster_for(job), context.config, now_s)
    row = _row(context, intake, asked, decision)
    if isinstance(decision, Refusal) or not context.acting:
        context.journal.add_incident(row)
        outcome = "refused" if isinstance(decision, Refusal) else "observed"
        context.journal.close_incident(key, outcome, decision.reason, now_s, seat=0)
        context.info(f"plan.{outcome}", f"{key}: {decision.reason}")
        return
    if (other := recoveries.of_job(job.ref.job_id)) is not None:
        recoveries.supersede(other.row.key, f"its node is out, too ({asked.name})")
    recoveries.start(row)


def _row(context: DaemonContext, intake: ClaimIntake, asked: Unasked, decision: Recovery | Refusal) -> IncidentRow:
    job = asked.job
    claim = intake.supervised.get(job.ref.job_id)
    suspects = tuple(Suspect(node, (), 1.0, asked.reason) for node in asked.nodes)
    verdict = Verdict(Conclusion.CULPRIT, asked.reason, suspects, corroborated=True, grade=Grade.CERTAIN)
    times = {"fault": asked.fault_at_s, "accepted": context.now_s()}
    row = new_row(context, job, asked.name, verdict=verdict, decision=decision, times=times)
    return replace(row, kind=asked.kind, confidence=1.0, lineage=claim.lineage if claim else "")
