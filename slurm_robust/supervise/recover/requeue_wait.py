"""Waits until the requeue ends this job, and requests a plain requeue if the daemon's does not come.

Inside a batch script the launcher becomes a small shell, which runs
`python -m slurm_robust.supervise.recover.requeue_wait WAIT` (not for people) every few seconds to poll the job. Between
polls, the requeue only has to end one small process.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

import msgspec

from slurm_robust.config.site import SlurmConfig
from slurm_robust.core.model import EXIT_REQUEUE_WANTED, JobRef
from slurm_robust.marks.claim import ClaimAnswer, answer_to
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.commands import CommandClient
from slurm_robust.slurm.errors import SlurmError, SlurmRefusedError
from slurm_robust.supervise.clock import Clock
from slurm_robust.supervise.incident_folder import IncidentFolder
from slurm_robust.supervise.launch import waiting_shell

POLL_IN_SCRIPT_S = 4.0
"""Between two polls inside a batch script. A healthy daemon answers in a second, and the requeue follows."""
_POLL_S = 0.25
"""Seconds between two polls if no process of ours delays the job's end (`srobust attach`)."""
_COUNTS_S = 6.0
"""Waiting for the daemon counts only while Slurm answers: at most this much between two answers of Slurm."""
_AWAY_S = 86400.0
"""After this long without slurmctld, the wait ends."""
_FORGOTTEN_S = 10.0
"""A requeue begins within a second; if the job still runs this long after it, the requeue is requested again."""
ENDED_WITH_JOB = 128 + 15
"""The exit code of a shell for a process that SIGTERM ended."""


class WaitPhase(str, Enum):
    """The event that is waited for."""

    ASKED = "asked"
    """The daemon's answer."""
    ACCEPTED = "accepted"
    """The daemon's requeue."""
    REQUEUED = "requeued"
    """Our own, plain requeue, which was requested."""
    PLAIN = "plain"
    """No event is waited for: a plain requeue is next."""


@dataclass(frozen=True)
class RequeueWait:
    """The state of the wait; it is passed from process to process as JSON.

    Attributes:
        restart: The restart count of the waiting attempt; another count means that the job was requeued.
        evict: Nodes that a requeue of our own asks Slurm to leave out.
        folder: The incident folder.
        until_s: When the wait in this phase is over, seconds since the epoch.
        answer_timeout_s: How long the daemon's requeue may take once it has accepted.
        requeue_timeout_s: How long to wait to be ended, once a requeue of ours is wanted.
        heard_at_s: When Slurm answered last.
        called_at_s: When our own requeue was requested last.
        tried: Our own requeue was requested, and Slurm did not answer.
        site_observes: The site's robust.yaml says mode observe: its daemon does not answer, since it changes nothing.
    """

    ref: JobRef
    restart: int
    incident: str
    evict: tuple[str, ...]
    folder: str
    slurm: SlurmConfig
    phase: WaitPhase
    until_s: float
    answer_timeout_s: float
    requeue_timeout_s: float
    heard_at_s: float
    called_at_s: float = 0.0
    tried: bool = False
    site_observes: bool = False

    @property
    def argv(self) -> list[str]:
        """The command that polls once; its last argument is the state of the wait."""
        return [sys.executable, "-m", "slurm_robust.supervise.recover.requeue_wait", msgspec.json.encode(self).decode()]


@dataclass(frozen=True)
class WaitStep:
    """The next step of the wait.

    Attributes:
        kind, text: A line of the story, empty for none.
        wait: How the wait goes on; None if it is over.
        requeue: A plain requeue is to be requested.
        code: Exit code for the script, if the wait is over.
    """

    kind: str = ""
    text: str = ""
    wait: RequeueWait | None = None
    requeue: bool = False
    code: int = EXIT_REQUEUE_WANTED


def plain_requeue_text(evict: Sequence[str]) -> str:
    """Return a sentence for people on what a plain requeue means."""
    how = f"it asks to leave {','.join(evict)} out" if evict else "no node is named"
    return f"a plain requeue follows (Slurm waits 121 s; {how})"


def next_step(  # noqa: PLR0911 (a ladder: one rung, one answer)
    wait: RequeueWait,
    answer: ClaimAnswer | None,
    now_s: float,
    *,
    ending: bool,
    heard: bool = True,
    running: bool = True,
) -> WaitStep:
    """Decide the next step of the wait. Pure.

    `answer` is the daemon's answer to this incident. If Slurm has answered (`heard`), its answer shows whether the job
    is `running`, and whether Slurm is `ending` this run of the job or has begun another one.
    """
    if ending:
        # Only in a script that traps SIGTERM: its trap runs when we have ended.
        return WaitStep(code=ENDED_WITH_JOB)
    if not heard and now_s - wait.heard_at_s >= _AWAY_S:
        return WaitStep("gave-up", f"Slurm could not be asked for {_AWAY_S / 3600:g} h")
    if heard:
        uncounted_s = max(0.0, now_s - wait.heard_at_s - _COUNTS_S)
        wait = replace(wait, heard_at_s=now_s, until_s=wait.until_s + uncounted_s)
    requeued = replace(wait, phase=WaitPhase.REQUEUED, until_s=now_s + wait.requeue_timeout_s, called_at_s=now_s)
    late = heard and now_s >= wait.until_s
    if wait.phase is WaitPhase.PLAIN and not (wait.tried and late):
        return WaitStep(wait=replace(requeued, until_s=wait.until_s) if wait.tried else requeued, requeue=True)
    if wait.phase is WaitPhase.ASKED and answer is not None and answer.state == "accepted":
        accepted = replace(wait, phase=WaitPhase.ACCEPTED, until_s=now_s + wait.answer_timeout_s)
        why = f": {answer.why}" if answer.why else ""
        return WaitStep("accepted", f"the daemon has accepted, and its requeue is waited for{why}", accepted)
    refused = answer is not None and (
        wait.phase is WaitPhase.ASKED or (wait.phase is WaitPhase.ACCEPTED and answer.state == "refused")
    )
    if not late and not refused:
        return _go_on(wait, now_s, runs_on=heard and running)
    if wait.phase in (WaitPhase.ASKED, WaitPhase.ACCEPTED):
        nobody = "the daemon only observes (the site's mode)" if wait.site_observes else "no daemon answered"
        text = f"the daemon: {answer.state}: {answer.why}" if refused and answer else nobody
        if wait.phase is WaitPhase.ACCEPTED and not refused:
            text = f"accepted, but no requeue within {wait.answer_timeout_s:g} s"
        return WaitStep("unanswered", f"{text}; {plain_requeue_text(wait.evict)}", requeued, requeue=True)
    return WaitStep("gave-up", f"no requeue ended the job within {wait.requeue_timeout_s:g} s")


def _go_on(wait: RequeueWait, now_s: float, *, runs_on: bool) -> WaitStep:
    """Return the step if nothing is new: wait on, or request again a requeue that Slurm has forgotten."""
    if wait.phase is not WaitPhase.REQUEUED or not runs_on or now_s - wait.called_at_s < _FORGOTTEN_S:
        return WaitStep(wait=wait)
    again = replace(wait, called_at_s=now_s, tried=True)
    if wait.tried:
        return WaitStep(wait=again, requeue=True)
    return WaitStep("note", "the job still runs after its requeue; it is requested again", again, requeue=True)


def poll(
    wait: RequeueWait, client: SlurmClient, folder: IncidentFolder, clock: Clock, *, tells_first: bool = False
) -> RequeueWait | int:
    """Poll the job once, and take the next step; return how the wait goes on, or the exit code if it is over.

    With `tells_first` messages are printed at the end of this poll, and a requeue, which would end this process, is
    left to the next poll.
    """
    heard = True
    try:
        job = client.job(wait.ref)
    except SlurmError:
        job, heard = None, False  # nothing is concluded from that
    answer = answer_to(job.admin_comment, wait.incident) if job is not None else None
    ending = job is not None and (job.completing or job.restart_count != wait.restart)
    running = job is not None and job.state == "RUNNING"
    step = next_step(wait, answer, clock.now_s(), ending=ending, heard=heard, running=running)
    if step.kind:
        folder.log_event(step.kind, step.text)
    if tells_first and step.kind == "unanswered" and step.wait is not None:
        return replace(wait, phase=WaitPhase.PLAIN, heard_at_s=step.wait.heard_at_s)
    if step.requeue and step.wait is not None:
        return _requeue(step.wait, client, folder)
    return step.wait if step.wait is not None else step.code


def _requeue(wait: RequeueWait, client: SlurmClient, folder: IncidentFolder) -> RequeueWait | int:
    """Request the plain requeue; return how the wait goes on, or the exit code if Slurm refuses for good."""
    try:
        client.requeue(wait.ref, without=wait.evict)
    except SlurmRefusedError as error:
        try:
            job = client.job(wait.ref)
        except SlurmError:
            return replace(wait, phase=WaitPhase.PLAIN, tried=True)  # requested again when it answers
        if job is not None and (job.completing or job.restart_count > wait.restart):
            return wait  # Slurm had received it after all
        folder.log_event("gave-up", f"the job could not be requeued: {error}")
        return EXIT_REQUEUE_WANTED
    except SlurmError as error:
        # The job must not be lost because a controller is away or busy just now.
        if not wait.tried:
            folder.log_event("note", f"the requeue is tried again: {error}")
        return replace(wait, phase=WaitPhase.PLAIN, tried=True)
    return wait


async def wait_here(wait: RequeueWait, client: SlurmClient, folder: IncidentFolder, clock: Clock) -> int:
    """Wait in this process; return the exit code if no requeue came."""
    while True:
        polled = await asyncio.to_thread(poll, wait, client, folder, clock)
        if isinstance(polled, int):
            return polled
        wait = polled
        await clock.sleep(_POLL_S)


def main() -> None:
    """Poll once, and print the next step for the waiting shell."""
    waiting_shell.die_with_parent(os.getppid())
    wait = msgspec.json.decode(sys.argv[1], type=RequeueWait)
    # This process polls once: pyslurm would have to start each time, and would report each time what it lacks.
    polled = poll(wait, CommandClient(wait.slurm), IncidentFolder(Path(wait.folder)), Clock(), tells_first=True)
    print(
        f"{waiting_shell.EXIT}{polled}"
        if isinstance(polled, int)
        else waiting_shell.NEXT + msgspec.json.encode(polled).decode()
    )


if __name__ == "__main__":
    main()
