"""The wait for a requeue: the claim is written, nothing is left to do but to be ended, and to help ourselves else.

Inside a batch script the launcher becomes a small shell, which runs
`python -m slurm_robust.supervise.recover.requeue_wait WAIT` (not for people) every few seconds to look at the job.
In between, one tiny process is all that the requeue has to end.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

import msgspec

from slurm_robust.claim import ClaimAnswer, ClaimError, parse_answer
from slurm_robust.config import SlurmConfig
from slurm_robust.model import EXIT_REQUEUE_WANTED, JobRef
from slurm_robust.slurm.client import Job, SlurmClient
from slurm_robust.slurm.errors import SlurmError, SlurmRefusedError
from slurm_robust.slurm.factory import connect
from slurm_robust.supervise.incident.incident_folder import Folder
from slurm_robust.supervise.recover import waiting_shell

NAP_S = 4.0
"""Between two looks inside a batch script. A daemon that is well answers in a second, and the requeue follows."""
_LOOK_S = 0.25
"""Between two looks where nothing of ours is in the job's way (`srobust attach`)."""
_COUNTS_S = 6.0
"""Patience with the daemon is counted in time that Slurm was there: at most this much between two answers of Slurm."""
_AWAY_S = 86400.0
"""A slurmctld that is away for this long is not waited for."""
_FORGOTTEN_S = 10.0
"""A requeue is begun in a second; a job that runs on this long after it needs another call."""
ENDED_WITH_JOB = 128 + 15
"""As a shell says that SIGTERM ended a process."""


class Phase(str, Enum):
    """What is waited for."""

    ASKED = "asked"
    """The daemon's answer."""
    ACCEPTED = "accepted"
    """The daemon's requeue."""
    REQUEUED = "requeued"
    """Our own, plain requeue, which was called."""
    PLAIN = "plain"
    """Nothing: a plain requeue is next."""


@dataclass(frozen=True)
class Wait:
    """All that the wait must know; it travels as JSON.

    Attributes:
        restart: Of the attempt that waits; with another one, it has been requeued.
        evict: Nodes that a requeue of our own asks Slurm to leave out.
        folder: The incident folder.
        until_s: When the wait of this phase is over, seconds since the epoch.
        answer_timeout_s: How long the daemon's requeue may take once it has accepted.
        requeue_timeout_s: How long to wait to be ended, once a requeue of ours is wanted.
        heard_at_s: When Slurm was last heard of.
        called_at_s: When our own requeue was last called.
        tried: Our own requeue was called, and not heard.
    """

    ref: JobRef
    restart: int
    incident: str
    evict: tuple[str, ...]
    folder: str
    slurm: SlurmConfig
    phase: Phase
    until_s: float
    answer_timeout_s: float
    requeue_timeout_s: float
    heard_at_s: float
    called_at_s: float = 0.0
    tried: bool = False

    @property
    def argv(self) -> list[str]:
        """The command that looks once; its last argument is the wait."""
        return [sys.executable, "-m", "slurm_robust.supervise.recover.requeue_wait", msgspec.json.encode(self).decode()]


@dataclass(frozen=True)
class Step:
    """What is next.

    Attributes:
        kind, text: A line of the story, empty for none.
        wait: How the wait goes on; None where it is over.
        requeue: A plain requeue is to be called.
        code: Exit code for the script, where the wait is over.
    """

    kind: str = ""
    text: str = ""
    wait: Wait | None = None
    requeue: bool = False
    code: int = EXIT_REQUEUE_WANTED


def plainly(evict: Sequence[str]) -> str:
    """What a requeue of our own means, in words."""
    how = f"it asks to leave {','.join(evict)} out" if evict else "no node is named"
    return f"a plain requeue follows (Slurm waits 121 s; {how})"


def next_step(  # noqa: PLR0911 (a ladder: one rung, one answer)
    wait: Wait, answer: ClaimAnswer | None, now_s: float, *, ending: bool, heard: bool = True, running: bool = True
) -> Step:
    """Decide. Pure.

    Args:
        wait: What is waited for.
        answer: The daemon's answer to this incident, as far as there is one.
        now_s: Seconds since the epoch.
        ending: Slurm ends this run of the job, or has begun another one.
        heard: Slurm could be asked.
        running: The job runs, as far as Slurm knows.
    """
    if ending:
        # Only a script that traps SIGTERM comes this far: its trap runs when we have ended.
        return Step(code=ENDED_WITH_JOB)
    if not heard and now_s - wait.heard_at_s >= _AWAY_S:
        return Step("gave-up", f"Slurm could not be asked for {_AWAY_S / 3600:g} h")
    if heard:
        uncounted_s = max(0.0, now_s - wait.heard_at_s - _COUNTS_S)
        wait = replace(wait, heard_at_s=now_s, until_s=wait.until_s + uncounted_s)
    requeued = replace(wait, phase=Phase.REQUEUED, until_s=now_s + wait.requeue_timeout_s, called_at_s=now_s)
    late = heard and now_s >= wait.until_s
    if wait.phase is Phase.PLAIN and not (wait.tried and late):
        return Step(wait=replace(requeued, until_s=wait.until_s) if wait.tried else requeued, requeue=True)
    if wait.phase is Phase.ASKED and answer is not None and answer.state == "accepted":
        accepted = replace(wait, phase=Phase.ACCEPTED, until_s=now_s + wait.answer_timeout_s)
        told = f": {answer.why}" if answer.why else ""
        return Step("accepted", f"the daemon has accepted, and its requeue is waited for{told}", accepted)
    refused = answer is not None and (
        wait.phase is Phase.ASKED or (wait.phase is Phase.ACCEPTED and answer.state == "refused")
    )
    if not late and not refused:
        return _go_on(wait, now_s, runs_on=heard and running)
    if wait.phase in (Phase.ASKED, Phase.ACCEPTED):
        said = f"the daemon: {answer.state}: {answer.why}" if refused and answer else "no daemon answered"
        if wait.phase is Phase.ACCEPTED and not refused:
            said = f"accepted, but no requeue within {wait.answer_timeout_s:g} s"
        return Step("unanswered", f"{said}; {plainly(wait.evict)}", requeued, requeue=True)
    return Step("gave-up", f"nobody came for {wait.requeue_timeout_s:g} s")


def _go_on(wait: Wait, now_s: float, *, runs_on: bool) -> Step:
    """Nothing new; a requeue that Slurm has forgotten is called again."""
    if wait.phase is not Phase.REQUEUED or not runs_on or now_s - wait.called_at_s < _FORGOTTEN_S:
        return Step(wait=wait)
    again = replace(wait, called_at_s=now_s, tried=True)
    if wait.tried:
        return Step(wait=again, requeue=True)
    return Step("note", "the job runs on after its requeue; it is called again", again, requeue=True)


def _answer_of(job: Job, incident: str) -> ClaimAnswer | None:
    try:
        answer = parse_answer(job.admin_comment)
    except ClaimError:
        return None  # somebody else's words
    return answer if answer is not None and answer.incident == incident else None


def look(wait: Wait, client: SlurmClient, folder: Folder) -> Wait | int:
    """Look at the job once, and do what is next: how the wait goes on, or the exit code where it is over."""
    heard = True
    try:
        job = client.job(wait.ref)
    except SlurmError:
        job, heard = None, False  # nothing is concluded from that
    answer = _answer_of(job, wait.incident) if job is not None else None
    ending = job is not None and (job.completing or job.restart_count != wait.restart)
    running = job is not None and job.state == "RUNNING"
    step = next_step(wait, answer, time.time(), ending=ending, heard=heard, running=running)
    if step.kind:
        folder.tell(step.kind, step.text)
    if step.requeue and step.wait is not None:
        return _requeue(step.wait, client, folder)
    return step.wait if step.wait is not None else step.code


def _requeue(wait: Wait, client: SlurmClient, folder: Folder) -> Wait | int:
    """Call the plain requeue: how the wait goes on, or the exit code where Slurm refuses for good."""
    try:
        client.requeue(wait.ref, without=wait.evict)
    except SlurmRefusedError as error:
        try:
            job = client.job(wait.ref)
        except SlurmError:
            return replace(wait, phase=Phase.PLAIN, tried=True)  # away again: asked anew when it is back
        if job is not None and (job.completing or job.restart_count > wait.restart):
            return wait  # it was heard after all
        folder.tell("gave-up", f"the job could not be requeued: {error}")
        return EXIT_REQUEUE_WANTED
    except SlurmError as error:
        # A controller that is away or busy just now must not cost the job.
        if not wait.tried:
            folder.tell("note", f"the requeue is tried again: {error}")
        return replace(wait, phase=Phase.PLAIN, tried=True)
    return wait


async def here(wait: Wait, client: SlurmClient, folder: Folder) -> int:
    """Wait as what we are; returns the exit code where nobody came."""
    while True:
        found = await asyncio.to_thread(look, wait, client, folder)
        if isinstance(found, int):
            return found
        wait = found
        await asyncio.sleep(_LOOK_S)


def main() -> None:
    """Look once, and say what is next to the shell that waits."""
    waiting_shell.die_with_parent(os.getppid())
    wait = msgspec.json.decode(sys.argv[1], type=Wait)
    found = look(wait, connect(wait.slurm), Folder(Path(wait.folder)))
    print(
        f"{waiting_shell.EXIT}{found}"
        if isinstance(found, int)
        else waiting_shell.NEXT + msgspec.json.encode(found).decode()
    )


if __name__ == "__main__":
    main()
