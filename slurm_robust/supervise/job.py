"""Holds the supervised job: its identity, Slurm's data about it, and its claim."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from slurm_robust.core.model import Attempt, Incident, JobRef, Mode, Road
from slurm_robust.marks import claim
from slurm_robust.marks.claim import Claim, ClaimError
from slurm_robust.slurm.client import Job, SlurmClient
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.slurm.output_files import existing_output
from slurm_robust.supervise.agent import procfs
from slurm_robust.supervise.clock import Clock
from slurm_robust.supervise.job_ref import NoJobError, ids_from_environment

_SCRIPT_MAX_BYTES = 1 << 20
_LAST_CLAIM_S = 5.0
"""A Slurm that does not answer must not delay the next line of the batch script for longer."""


def ref_from_environment(env: Mapping[str, str]) -> JobRef:
    """Return the job that this process runs in.

    Raises:
        NoJobError: the process runs outside of any job.
    """
    return JobRef(*ids_from_environment(env))


def batch_script() -> str:
    """Return the text of the batch script that started this process's launcher; empty if no batch script did.

    slurmd keeps a copy of the script; its path is on the command line of the shell that runs it.
    """
    try:
        launcher = procfs.stat(os.getppid())
        words = Path(f"/proc/{launcher.ppid if launcher else 0}/cmdline").read_bytes().split(b"\0")
        path = next(Path(os.fsdecode(w)) for w in words if w.endswith(b"/slurm_script"))
        with path.open("rb") as f:
            return f.read(_SCRIPT_MAX_BYTES).decode("utf-8", "replace")
    except (OSError, StopIteration):
        return ""


def asks_no_kill(script: str) -> bool:
    """Return whether a batch script's options keep its job when a node dies (`#SBATCH --no-kill`).

    Slurm tells that by no variable and no command, at least up to 22.05; an option of sbatch's command line stays
    unknown.
    """
    asks = False
    for line in script.splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            break  # sbatch reads no option behind the first command
        words = line.split("#SBATCH", 1)[1].split() if line.startswith("#SBATCH") else []
        for word in words:
            if word.startswith("#"):
                break
            if word in ("-k", "--no-kill") or word.startswith("--no-kill="):
                asks = not word.endswith("=off")
    return asks


@dataclass
class SupervisedJob:
    """A job, as far as its supervisor needs it.

    Attributes:
        info: The job as Slurm knew it when the supervision began.
        previous: The claim that the attempt before left, None on a first run.
        claim: This run's claim, as it was written last.
        can_claim: Whether the Comment may be written (it belongs to the owner, and its protocol is understood).
        refused: Why Slurm refused the last claim, in Slurm's words; empty if it did not.
        progress: Called at each writing for the training's progress, which the claim tells.
    """

    client: SlurmClient
    cluster: str
    info: Job
    previous: Claim | None
    claim: Claim
    can_claim: bool = True
    refused: str = ""
    progress: Callable[[], Mapping[str, float]] = dict
    clock: Clock = field(default_factory=Clock)
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _tasks: set[asyncio.Task[bool]] = field(default_factory=set)

    @property
    def ref(self) -> JobRef:
        """The job's name for Slurm's commands."""
        return self.info.ref

    @property
    def job_id(self) -> int:
        """Return the job's raw id."""
        return self.ref.job_id

    @property
    def nodes(self) -> tuple[str, ...]:
        """Nodes of its allocation."""
        return self.info.nodes

    @property
    def attempt(self) -> Attempt:
        """This run of the job."""
        return Attempt(self.cluster, self.name, self.info.restart_count, self.info.start_at_s)

    @property
    def name(self) -> str:
        """The job's name in paths, as in `slurm-%A_%a.out`."""
        return self.ref.address

    @property
    def restart_count(self) -> int:
        """The number of times that Slurm had requeued the job before this run."""
        return self.info.restart_count

    @property
    def requeue_requested(self) -> bool:
        """Whether this attempt has already requested a requeue, and the request was not withdrawn."""
        p = self.previous
        return p is not None and p.state == claim.STATE_WANTS_REQUEUE and p.restart == self.info.restart_count

    def output(self) -> Path | None:
        """Return the output file of the job's batch script; None if it has none, or Slurm does not know its path."""
        return existing_output(self.info)

    async def slurm_settings(self) -> Mapping[str, str]:
        """Return Slurm's configuration, by key; empty if Slurm does not tell it."""
        try:
            return await asyncio.to_thread(self.client.settings)
        except SlurmError:
            return {}

    async def write_claim(self, **changes: object) -> bool:
        """Write the claim with these changes; return False if Slurm did not take it (training goes on)."""
        async with self._writing:
            return await self._write(changes)

    async def _write(self, changes: Mapping[str, object]) -> bool:
        # Without a suspicion or a standstill among the changes, an earlier one is withdrawn.
        now = {"at_s": round(self.clock.now_s(), 3), "suspected_at_s": 0.0, "progress": self.progress()}
        now |= {"still_since_s": 0.0, "still": "", "acts_at_s": 0.0, **changes}
        if now.get("incident", self.claim.incident) != self.claim.incident:
            now["asked"] = -1  # what was repeated belongs to the incident before
        self.claim = replace(self.claim, **now)  # type: ignore[arg-type]
        if not self.can_claim:
            self.refused = "the Comment is another owner's, or a newer version's"
            return False
        try:
            # Read again each time: the user's own part of the Comment may have changed.
            job = await asyncio.to_thread(self.client.job, self.ref)
            users_part = claim.split(job.comment)[0] if job is not None else ""
            text = claim.render(self.claim, users_part)
            await asyncio.to_thread(lambda: self.client.update_job(self.ref, comment=text))
        except (SlurmError, ClaimError) as error:
            self.refused = str(error)
            return False
        self.refused = ""
        return True

    def tell_progress(self) -> None:
        """Write the claim with the training's progress, without waiting; skipped if the claim asks for something."""
        if self.can_claim:
            self._start(self._write_progress())

    async def _write_progress(self) -> bool:
        async with self._writing:
            # A claim that asks for something is judged as it was read: it does not change for a report.
            asks = self.claim.state != claim.STATE_WATCHING or self.claim.suspected_at_s > 0
            still = {"still_since_s": self.claim.still_since_s, "still": self.claim.still}
            return False if asks else await self._write(still)

    def announce_suspicion(self) -> None:
        """Write, without waiting for it, that something seems wrong: the daemon then polls the job more often."""
        if not self.claim.suspected_at_s:
            self._write_soon({"suspected_at_s": round(self.clock.now_s(), 3)})

    def tell(self, **changes: object) -> None:
        """Write these changes into the claim, without waiting for it; a suspicion stays."""
        kept = {"suspected_at_s": self.claim.suspected_at_s, "acts_at_s": self.claim.acts_at_s}
        self._write_soon({**kept, **changes})

    def withdraw_suspicion(self) -> None:
        """Write, without waiting for it, that nothing is suspected any more."""
        if self.claim.suspected_at_s:
            self._write_soon({})

    async def report(self, incident: Incident, mode: Mode, acts_at_s: float = 0.0) -> None:
        """Report a plan that does not need the daemon, for the admins, who read the daemon's journal.

        `acts_at_s`: when something else will be done, if nothing changes; 0 if it is not known.

        If the plan is carried out, do not wait for Slurm: nothing may delay the recovery. If it is not carried out, the
        job may end in a moment, so wait a while until the claim is written.
        """
        verdict, plan = incident.verdict, incident.plan
        assert verdict is not None
        assert plan is not None
        named = {s.node for s in verdict.suspects if s.node}
        report: dict[str, object] = {
            "incident": incident.id,
            "asked": -1,
            "road": plan.road.value,
            "mode": mode.value,
            "evict": plan.evict[: claim.MAX_NODES],
            # The Comment is short: it does not repeat the same names.
            "suspects": () if named == set(plan.evict) else tuple(sorted(named))[: claim.MAX_NODES],
            "conclusion": verdict.conclusion.value,
            "confidence": round(max((s.confidence for s in verdict.suspects), default=0.0), 3),
            "why": plan.reason,
            "times": dict(incident.times),
            "suspected_at_s": self.claim.suspected_at_s or round(self.clock.now_s(), 3),
            "acts_at_s": round(acts_at_s, 3),
        }
        if mode is Mode.ACT and plan.road is Road.STOP:
            # The job's last claim follows and carries it: a report after that one would call an ended job suspected.
            self.claim = replace(self.claim, **report)  # type: ignore[arg-type]
        elif mode is Mode.ACT:
            self._write_soon(report)
        else:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.write_claim(**report), _LAST_CLAIM_S)

    def _write_soon(self, changes: dict[str, object]) -> None:
        self._start(self.write_claim(**changes))

    def _start(self, writing: Coroutine[None, None, bool]) -> None:
        task = asyncio.get_running_loop().create_task(writing)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def read(client: SlurmClient, ref: JobRef) -> SupervisedJob:
    """Ask Slurm about the job.

    Raises:
        NoJobError: Slurm does not know the job.
        SlurmError: Slurm cannot be asked.
    """
    job = client.job(ref)
    if job is None:
        raise NoJobError(f"Slurm does not know job {ref.address}; see: squeue -u $USER")
    can_claim = True
    try:
        previous = claim.parse(job.comment)
    except ClaimError:
        previous, can_claim = None, False  # a newer version's: not ours to overwrite
    last = previous
    if previous is not None and previous.state == claim.STATE_DONE and previous.restart == job.restart_count:
        previous = None  # an earlier run of the same script is over: this is another training
    mine = Claim(
        state=claim.STATE_WATCHING,
        lineage=previous.lineage if previous else secrets.token_hex(6),
        restart=job.restart_count,
        incident=previous.incident if previous else "",
        fruitless=previous.fruitless if previous else 0,
        step=previous.step if previous else -1,
        failed=last.failed if last else 0,
        failed_since_s=last.failed_since_s if last else 0.0,
    )
    mine = replace(mine, **_unanswered(job, previous))
    can_claim = can_claim and job.uid == os.getuid()
    return SupervisedJob(client, client.cluster_name(), job, previous, mine, can_claim)


def _unanswered(job: Job, previous: Claim | None) -> dict[str, Any]:
    """Return the parts of an unanswered claim to repeat: a daemon that was away reads them when it starts."""
    if previous is None or previous.restart >= job.restart_count:
        return {}
    asked = previous.restart if previous.state == claim.STATE_WANTS_REQUEUE else previous.asked
    if asked < 0 or claim.answer_to(job.admin_comment, previous.incident):
        return {}
    kept = ("evict", "conclusion", "confidence", "why", "grade")
    return {"asked": asked, **{name: getattr(previous, name) for name in kept}}
