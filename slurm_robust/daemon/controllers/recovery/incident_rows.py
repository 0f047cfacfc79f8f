"""Writes an incident down: its unique name, its row in the journal, and what its job has had so far."""

from __future__ import annotations

from pathlib import PurePosixPath

from slurm_robust.core.model import Attempt, Incident, Verdict
from slurm_robust.core.text import printable
from slurm_robust.daemon.context import DaemonContext
from slurm_robust.daemon.store.journal import IncidentRow
from slurm_robust.marks.claim import Claim
from slurm_robust.policy.cluster.recovery_plan import NODE_LOST, Recovery, Refusal
from slurm_robust.slurm.client import Job


def incident_key(job: Job, incident: str) -> str:
    """Unique name of an incident. The attempt is part of it, since the job chooses the incident's id."""
    return f"{job.ref.job_id}.r{job.restart_count}.{job.start_at_s}.{incident}"


def new_row(
    context: DaemonContext,
    job: Job,
    incident: str,
    *,
    verdict: Verdict,
    decision: Recovery | Refusal | None,
    times: dict[str, float],
) -> IncidentRow:
    """Return a new incident of this job for the journal, with the decision."""
    recovery, now_s = decision if isinstance(decision, Recovery) else None, context.now_s()
    attempt = Attempt(context.cluster_name, job.ref.address, job.restart_count, job.start_at_s)
    return IncidentRow(
        key=incident_key(job, incident),
        incident=Incident(
            id=incident,
            job=attempt.job,
            attempt=attempt.key,
            opened_at_s=now_s,
            times={**times, "accepted": now_s} if recovery else times,
            verdict=verdict,
            plan=recovery.plan if recovery else None,
        ),
        attempt=attempt,
        job_id=job.ref.job_id,
        user=job.user,
        kind=NODE_LOST,
        mode=context.mode.value,
        recovery=recovery,
        seat=recovery is not None and bool(recovery.seat),
    )


def report_folder(job: Job) -> str:
    """Return where the wrapper writes its report: beside the job's output file.

    The path is text of the job's owner, only to be shown.
    """
    parent = PurePosixPath(job.std_out).parent if job.std_out.startswith("/") else PurePosixPath(job.work_dir or "/")
    return printable(str(parent / f"slurm-robust-{job.ref.address}"))


def reached(claim: Claim) -> str:
    """Return why an incident is closed when its job makes a new step: where it went on from, and its highest step."""
    step = claim.step_now(claim.restart)
    begun = f"goes on from step {claim.resume_step}, " if claim.resume_step >= 0 else ""
    return f"{begun}step {step} reached" if step >= 0 else "it reached a new step"
