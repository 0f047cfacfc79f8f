"""The acts of a plan, inside the allocation and towards the daemon. What to do was decided before."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from slurm_robust import claim
from slurm_robust.config import SuperviseConfig
from slurm_robust.model import EXIT_REQUEUE_WANTED, Plan, Road, Verdict
from slurm_robust.slurm.errors import SlurmError, SlurmRefusedError
from slurm_robust.supervise.agents import Agents
from slurm_robust.supervise.channel import Channel
from slurm_robust.supervise.fleet import Fleet
from slurm_robust.supervise.folder import Folder
from slurm_robust.supervise.incident import Record
from slurm_robust.supervise.job import JobContext

_POLL_S = 0.02
_SRUN_KILLED_S = 3.0
_AGENTS_KILL_S = 0.3
_SAY_S = 15.0
_SAY_AGAIN_S = 1.0


async def end_step(
    context: JobContext,
    channel: Channel | None,
    agents: Agents,
    fleet: Fleet,
    *,
    folder: Folder,
    config: SuperviseConfig,
) -> None:
    """End the training step at once. The evidence has been taken: SIGTERM and its KillWait would only cost time.

    The agents kill first, every process of every rank at once: a slurmstepd that finds its processes gone ends its
    step without the second that it otherwise waits for them. Slurm's own kill follows for what no agent reaches.
    """
    if channel is not None and channel.ended is not None:
        return
    if fleet.attempt:
        agents.tell("clean", id=0, attempt=fleet.attempt, timeout_s=config.kill_clean_timeout_s)
        if channel is not None and await channel.wait_ended(_AGENTS_KILL_S):
            return
    for step_id in fleet.step_ids:
        try:
            await asyncio.to_thread(context.client.signal, context.ref, "KILL", step_id)
        except SlurmError as error:
            folder.tell("note", f"step {context.name}.{step_id} could not be killed: {error}")
    if channel is None:
        return
    if fleet.step_ids and await channel.wait_ended(config.kill_clean_timeout_s):
        return
    # A node that does not answer keeps srun waiting: srun itself goes, and what it left is looked for next.
    channel.kill()
    await channel.wait_ended(_SRUN_KILLED_S)


async def clean(agents: Agents, fleet: Fleet, nodes: Iterable[str], config: SuperviseConfig) -> dict[str, str]:
    """Make sure that no process of the ended attempt is left.

    Returns:
        Nodes that did not get clean in time, with what they said: such a node is itself a suspect.
    """
    want = set(nodes)
    key = int(time.monotonic() * 1000)
    agents.tell("clean", id=key, attempt=fleet.attempt, timeout_s=config.kill_clean_timeout_s)
    deadline = time.monotonic() + config.kill_clean_timeout_s + 1.0
    while time.monotonic() < deadline and not want <= set(fleet.clean.get(key, {})):
        await asyncio.sleep(_POLL_S)
    answers = fleet.clean.pop(key, {})
    dirty = {n: f"processes {left} outlive SIGKILL" for n, left in answers.items() if left and n in want}
    dirty.update(dict.fromkeys(want - set(answers), "its agent does not say whether it is clean"))
    return dirty


async def _say_for_sure(context: JobContext, **changes: object) -> bool:
    """Write the claim, again and again for a while: a controller that is busy just now must not cost the eviction."""
    deadline = time.monotonic() + _SAY_S
    while not await context.say(**changes):
        if not context.can_claim or time.monotonic() > deadline:
            return False
        await asyncio.sleep(_SAY_AGAIN_S)
    return True


async def requeue(
    context: JobContext,
    agents: Agents,
    folder: Folder,
    config: SuperviseConfig,
    *,
    record: Record,
    verdict: Verdict | None,
    plan: Plan,
) -> int:
    """Ask for a requeue and wait to be ended by it; an exit code where nobody came.

    The claim goes into the job's Comment. Where no daemon takes it, the job requeues itself, plainly. It does not
    return while a requeue is wanted: the script's next lines would run, and the job would end.
    """
    # A watch step whose srun is killed by the requeue takes seconds to end, and the job with it.
    await agents.stop()
    if plan.road is Road.SEAT:
        suspect = max((s.confidence for s in verdict.suspects), default=0.0) if verdict else 0.0
        written = await _say_for_sure(
            context,
            state=claim.STATE_WANTS_REQUEUE,
            incident=record.id,
            evict=plan.evict,
            conclusion=verdict.conclusion.value if verdict else "",
            confidence=round(suspect, 3),
            why=plan.reason,
            times=dict(record.times),
        )
        if written:
            folder.tell("claimed", f"asked the daemon for a requeue without {','.join(plan.evict) or 'anyone'}")
            answer = await context.answer(record.id, config.answer_timeout_s)
            said = f"the daemon: {answer.state}: {answer.why}" if answer else "no daemon answered"
            if answer is not None and answer.state == "accepted":
                folder.tell("accepted", f"the daemon: {answer.why or 'accepted'}")
                # Its next act is the requeue, which ends this process. A daemon that died right here comes no more.
                await asyncio.sleep(config.answer_timeout_s)
                if await _on_its_way(context):
                    await asyncio.sleep(config.requeue_timeout_s)
                    return EXIT_REQUEUE_WANTED
                said = f"accepted, but no requeue within {config.answer_timeout_s:g} s"
            folder.tell("unanswered", f"{said}; a plain requeue follows (Slurm waits 121 s, and excludes no node)")
        else:
            folder.tell("unanswered", "the claim could not be written into the job's Comment; a plain requeue follows")
    await _requeue_plainly(context, folder, config)
    return EXIT_REQUEUE_WANTED


async def _on_its_way(context: JobContext) -> bool:
    """True where Slurm shows that somebody requeued the job already; False also where it cannot be asked."""
    try:
        now = await asyncio.to_thread(context.client.job, context.ref)
    except SlurmError:
        return False
    return now is not None and (now.completing or now.restart_count > context.job.restart_count)


async def _requeue_plainly(context: JobContext, folder: Folder, config: SuperviseConfig) -> None:
    """Requeue the job and wait to be ended by that; returns where Slurm refuses, or nobody came in time."""
    deadline = time.monotonic() + config.requeue_timeout_s
    unheard = ""
    while time.monotonic() < deadline:
        try:
            await asyncio.to_thread(context.client.requeue, context.ref)
            break
        except SlurmRefusedError as error:
            if await _on_its_way(context):
                break
            folder.tell("gave-up", f"the job could not be requeued: {error}")
            return
        except SlurmError as error:
            # A controller that is away or busy just now must not cost the job.
            if not unheard:
                folder.tell("note", f"the requeue is tried again: {error}")
            unheard = f"; Slurm: {error}"
            await asyncio.sleep(_SAY_AGAIN_S)
    await asyncio.sleep(max(0.0, deadline - time.monotonic()))
    folder.tell("gave-up", f"nobody came for {config.requeue_timeout_s:g} s{unheard}")
