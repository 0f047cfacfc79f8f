"""The acts of a plan, inside the allocation and towards the daemon. What to do was decided before."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import replace

from slurm_robust import claim
from slurm_robust.config import Config, SuperviseConfig
from slurm_robust.model import EXIT_REQUEUE_WANTED, Plan, Road, Verdict
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.supervise.incident.incident_folder import Folder
from slurm_robust.supervise.incident.incident_page import Record
from slurm_robust.supervise.job import JobContext
from slurm_robust.supervise.launch.channel import Channel
from slurm_robust.supervise.recover import requeue_wait
from slurm_robust.supervise.recover.requeue_wait import Phase, Wait
from slurm_robust.supervise.watch.agents import Agents
from slurm_robust.supervise.watch.fleet import Fleet

_POLL_S = 0.02
_SRUN_KILLED_S = 3.0
_AGENTS_KILL_S = 0.3
_TELL_AGAIN_S = 1.0
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
    """Make sure that no process of the ended attempt is left, and that none of its step holds a GPU.

    Returns:
        Nodes that did not get clean in time, with what they said: such a node is itself a suspect.
    """
    want = set(nodes)
    key = int(time.monotonic() * 1000)
    fleet.clean[key] = {}
    timeout_s = config.kill_clean_timeout_s
    agents_until = time.monotonic() + timeout_s
    tell_at = 0.0
    while (now := time.monotonic()) < agents_until + 1.0 and not want <= set(fleet.clean.get(key, {})):
        if tell_at <= now < agents_until:
            # Again and again: an agent that was started anew meanwhile has not heard it. One that has goes on.
            left_s = agents_until - now
            agents.tell("clean", id=key, attempt=fleet.attempt, steps=fleet.step_ids, timeout_s=left_s)
            tell_at = now + _TELL_AGAIN_S
        await asyncio.sleep(_POLL_S)
    answers = fleet.clean.pop(key, {})
    dirty = {n: f"processes {left} outlive SIGKILL" for n, left in answers.items() if left and n in want}
    dirty.update(dict.fromkeys(want - set(answers), "its agent does not say whether it is clean"))
    return dirty


async def _say_for_sure(context: JobContext, patience_s: float, **changes: object) -> bool:
    """Write the claim, again and again for a while: a controller that is busy just now must not cost the eviction."""
    deadline = time.monotonic() + patience_s
    while not await context.say(**changes):
        if not context.can_claim or time.monotonic() > deadline:
            return False
        await asyncio.sleep(_SAY_AGAIN_S)
    return True


async def requeue(
    context: JobContext,
    channel: Channel | None,
    agents: Agents,
    folder: Folder,
    config: Config,
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
    said = replace(context.claim, incident=record.id, evict=plan.evict)
    if plan.road is not Road.SEAT:
        return await wait_for_requeue(context, channel, folder, config, said=said, phase=Phase.PLAIN)
    patience_s = config.supervise.answer_timeout_s
    if channel is not None and context.can_claim:
        # First, since the requeue follows the claim in a fifth of a second.
        asked = _wait(said, context, folder, config, Phase.ASKED)
        await channel.part(asked.argv, requeue_wait.NAP_S)
    suspect = max((s.confidence for s in verdict.suspects), default=0.0) if verdict else 0.0
    written = await _say_for_sure(
        context,
        min(_SAY_S, patience_s),
        state=claim.STATE_WANTS_REQUEUE,
        incident=record.id,
        # Of a plan that asked for nothing, and came before this one.
        road="",
        mode="",
        suspects=(),
        evict=plan.evict,
        conclusion=verdict.conclusion.value if verdict else "",
        confidence=round(suspect, 3),
        why=plan.reason,
        times=dict(record.times),
    )
    if written:
        folder.tell("claimed", f"asked the daemon for a requeue without {','.join(plan.evict) or 'anyone'}")
        return await wait_for_requeue(context, channel, folder, config, said=said, phase=Phase.ASKED)
    why = f" ({context.refused})" if context.refused else ""
    told = f"the claim could not be written into the job's Comment{why}; {requeue_wait.plainly(plan.evict)}"
    folder.tell("unanswered", told)
    return await wait_for_requeue(context, channel, folder, config, said=said, phase=Phase.PLAIN)


def _wait(said: claim.Claim, context: JobContext, folder: Folder, config: Config, phase: Phase) -> Wait:
    return Wait(
        ref=context.ref,
        restart=context.job.restart_count,
        incident=said.incident,
        evict=said.evict,
        folder=str(folder.path),
        slurm=config.slurm,
        phase=phase,
        until_s=time.time() + config.supervise.answer_timeout_s,
        answer_timeout_s=config.supervise.answer_timeout_s,
        requeue_timeout_s=config.supervise.requeue_timeout_s,
        heard_at_s=time.time(),
    )


async def wait_for_requeue(
    context: JobContext, channel: Channel | None, folder: Folder, config: Config, *, said: claim.Claim, phase: Phase
) -> int:
    """Wait to be ended by the requeue that this job's claim asks for; an exit code where nobody came.

    Inside a batch script the launcher waits alone, as something tiny: the fewer processes the requeue finds, the
    sooner the job runs again.
    """
    wait = _wait(said, context, folder, config, phase)
    if channel is None:
        return await requeue_wait.here(wait, context.client, folder)
    if phase is Phase.PLAIN:
        found = await asyncio.to_thread(requeue_wait.look, wait, context.client, folder)
        if isinstance(found, int):
            return found
        wait = found
    if not channel.gone.is_set():
        await channel.part(wait.argv, requeue_wait.NAP_S)
    return EXIT_REQUEUE_WANTED
