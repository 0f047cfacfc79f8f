"""Ends the training step, clears its nodes, and requests a requeue, as decided elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace

from slurm_robust.core.model import EXIT_REQUEUE_WANTED, Grade, Incident, Mode, Plan, Road, Verdict
from slurm_robust.marks import claim
from slurm_robust.policy.job.ladder import Rung
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.supervise.agent import messages
from slurm_robust.supervise.recover import requeue_wait
from slurm_robust.supervise.recover.requeue_wait import RequeueWait, WaitPhase
from slurm_robust.supervise.reported.fleet import Fleet
from slurm_robust.supervise.session import Session

_POLL_S = 0.02
_SRUN_KILLED_S = 3.0
_AGENTS_KILL_S = 0.3
_SEND_AGAIN_S = 1.0
_CLAIM_S = 15.0
_CLAIM_AGAIN_S = 1.0


async def end_step(session: Session, fleet: Fleet) -> None:
    """End the training step at once. The evidence has been taken, so SIGTERM and its KillWait would only cost time.

    The agents first kill all processes of all ranks at once: a slurmstepd whose processes are gone ends its step
    without waiting a second for them. Slurm's own kill follows for processes that no agent reaches.
    """
    channel, job, timeout_s = session.channel, session.job, session.settings.kill_clean_timeout_s
    if channel is not None and channel.ended is not None:
        return
    if fleet.attempt:
        session.agents.send(messages.CleanUp(0, fleet.attempt, timeout_s))
        if channel is not None and await channel.wait_ended(_AGENTS_KILL_S):
            return
    for step_id in fleet.step_ids:
        try:
            await asyncio.to_thread(job.client.signal, job.ref, "KILL", step_id)
        except SlurmError as error:
            session.folder.log_event("note", f"step {job.name}.{step_id} could not be killed: {error}")
    if channel is None:
        return
    if fleet.step_ids and await channel.wait_ended(timeout_s):
        return
    # A node that does not answer keeps srun waiting: srun itself is killed, and `clear_nodes` finds remaining
    # processes.
    channel.kill()
    await channel.wait_ended(_SRUN_KILLED_S)


async def clear_nodes(session: Session, fleet: Fleet, nodes: Iterable[str]) -> dict[str, str]:
    """Make sure that no process of the ended attempt is left, and that no process of its step holds a GPU.

    Returns:
        Nodes that are not clear in time, with what their agents reported: such a node is itself a suspect.
    """
    want, clock, agents = set(nodes), session.clock, session.agents
    key = int(clock.monotonic_s() * 1000)
    fleet.clean[key] = {}
    agents_until = clock.monotonic_s() + session.settings.kill_clean_timeout_s
    send_at = 0.0
    while (now := clock.monotonic_s()) < agents_until + 1.0 and not want <= set(fleet.clean.get(key, {})):
        if send_at <= now < agents_until:
            # Sent repeatedly: an agent that was restarted meanwhile has not received it. Other agents ignore
            # repetitions.
            left_s = agents_until - now
            agents.send(messages.CleanUp(key, fleet.attempt, left_s, tuple(fleet.step_ids)))
            send_at = now + _SEND_AGAIN_S
        await clock.sleep(_POLL_S)
    answers = fleet.clean.pop(key, {})
    dirty = {n: f"processes {left} outlive SIGKILL" for n, left in answers.items() if left and n in want}
    dirty.update(dict.fromkeys(want - set(answers), "its agent does not report whether it is clear"))
    return dirty


async def _write_claim(session: Session, patience_s: float, **changes: object) -> bool:
    """Write the claim, repeatedly for a while: a controller that is busy just now must not cost the eviction."""
    job, clock = session.job, session.clock
    deadline = clock.monotonic_s() + patience_s
    while not await job.write_claim(**changes):
        if not job.can_claim or clock.monotonic_s() > deadline:
            return False
        await clock.sleep(_CLAIM_AGAIN_S)
    return True


async def requeue(session: Session, incident: Incident, plan: Plan) -> int:
    """Request a requeue and wait for it to end us; return the exit code if no requeue came.

    The claim is written into the job's Comment. If no daemon takes it, the job requeues itself plainly. Do not return
    while a requeue is wanted: the next lines of the script would run, and the job would end.
    """
    job, channel = session.job, session.channel
    # A watch step whose srun is killed by the requeue takes seconds to end, and delays the end of the job.
    await session.agents.stop()
    wanted = replace(job.claim, incident=incident.id, evict=plan.evict)
    if plan.road is not Road.SEAT:
        return await wait_for_requeue(session, wanted, WaitPhase.PLAIN)
    patience_s = session.settings.answer_timeout_s
    if channel is not None and job.can_claim:
        # Before the claim, since the requeue follows the claim within 0.2 s.
        asked = _wait(session, wanted, WaitPhase.ASKED)
        await channel.part(asked.argv, requeue_wait.POLL_IN_SCRIPT_S)
    verdict = incident.verdict
    written = await _write_claim(
        session,
        min(_CLAIM_S, patience_s),
        state=claim.STATE_WANTS_REQUEUE,
        incident=incident.id,
        # These values are of an earlier plan, which did not need the daemon.
        road="",
        mode="",
        suspects=(),
        evict=plan.evict,
        conclusion=verdict.conclusion.value if verdict else "",
        grade=_grade(verdict, plan).value,
        confidence=round(max((s.confidence for s in verdict.suspects), default=0.0) if verdict else 0.0, 3),
        why=plan.reason,
        times=dict(incident.times),
    )
    if written:
        without = f"without {','.join(plan.evict)}" if plan.evict else "on the same nodes"
        text = f"asked the daemon for a requeue {without}"
        session.folder.log_event("claimed", text)
        return await wait_for_requeue(session, wanted, WaitPhase.ASKED)
    why = f" ({job.refused})" if job.refused else ""
    text = f"the claim could not be written into the job's Comment{why}; {requeue_wait.plain_requeue_text(plan.evict)}"
    session.folder.log_event("unanswered", text)
    return await wait_for_requeue(session, wanted, WaitPhase.PLAIN)


def _grade(verdict: Verdict | None, plan: Plan) -> Grade:
    """Return the grade of the evidence against the nodes of a claim.

    Nodes that the verdict does not name are known to be bad: they are dead, have reported a fault, or still have
    processes after SIGKILL. An exception is a group that is left as a whole.
    """
    if verdict is not None and plan.rung == Rung.LEAVE_GROUP:
        return verdict.grade
    named = {suspect.node for suspect in verdict.suspects} if verdict else set()
    return verdict.grade if verdict is not None and set(plan.evict) <= named else Grade.CERTAIN


def _wait(session: Session, wanted: claim.Claim, phase: WaitPhase) -> RequeueWait:
    settings, now_s = session.settings, session.clock.now_s()
    return RequeueWait(
        ref=session.job.ref,
        restart=session.job.restart_count,
        incident=wanted.incident,
        evict=wanted.evict,
        folder=str(session.folder.path),
        slurm=session.config.slurm,
        phase=phase,
        until_s=now_s + settings.answer_timeout_s,
        answer_timeout_s=settings.answer_timeout_s,
        requeue_timeout_s=settings.requeue_timeout_s,
        heard_at_s=now_s,
        site_observes=session.site_mode is Mode.OBSERVE,
    )


async def wait_for_requeue(session: Session, wanted: claim.Claim, phase: WaitPhase) -> int:
    """Wait until the requeue in this claim ends us; return the exit code if no requeue came.

    Inside a batch script the launcher waits alone, as a small shell: the fewer processes the requeue finds, the sooner
    the job runs again.
    """
    wait, client, folder, channel = _wait(session, wanted, phase), session.job.client, session.folder, session.channel
    if channel is None:
        code = await requeue_wait.wait_here(wait, client, folder, session.clock)
        if code == requeue_wait.ENDED_WITH_JOB and session.attached is not None:
            session.attached.kill()
        return code
    if phase is WaitPhase.PLAIN:
        polled = await asyncio.to_thread(requeue_wait.poll, wait, client, folder, session.clock)
        if isinstance(polled, int):
            return polled
        wait = polled
    if not channel.gone.is_set():
        await channel.part(wait.argv, requeue_wait.POLL_IN_SCRIPT_S)
    return EXIT_REQUEUE_WANTED
