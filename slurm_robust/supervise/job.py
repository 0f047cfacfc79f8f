"""The job that is supervised: who it is, what Slurm says of it, and its claim."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from slurm_robust import claim
from slurm_robust.claim import Claim, ClaimError
from slurm_robust.model import Attempt, JobRef, Mode, Plan, Road, Verdict
from slurm_robust.slurm.client import Job, SlurmClient
from slurm_robust.slurm.errors import SlurmError

_SCRIPT_MAX_BYTES = 1 << 20
_LAST_WORD_S = 5.0
"""A Slurm that does not answer must not keep the script's next line waiting."""


class NoJobError(Exception):
    """There is no job to supervise; the message says what to type."""


def ref_from_environment(env: Mapping[str, str]) -> JobRef:
    """The job that this process runs in.

    Raises:
        NoJobError: it runs in none.
    """
    raw = env.get("SLURM_JOB_ID", "")
    if not raw.isdigit():
        raise NoJobError("this is not inside a Slurm job (SLURM_JOB_ID is not set); use it in an sbatch file or salloc")
    array, task = env.get("SLURM_ARRAY_JOB_ID", ""), env.get("SLURM_ARRAY_TASK_ID", "")
    if array.isdigit() and task.isdigit():
        return JobRef(int(raw), int(array), int(task))
    if env.get("SLURM_HET_SIZE", "").isdigit():
        return JobRef(int(raw), het_offset=0)
    return JobRef(int(raw))


def batch_script() -> str:
    """The text of the batch script that this process's launcher was started by; empty where that is none.

    slurmd keeps its own copy, which the shell that runs it has on its command line.
    """
    try:
        stat = Path(f"/proc/{os.getppid()}/stat").read_text(encoding="utf-8", errors="replace")
        shell = stat[stat.rindex(")") + 2 :].split()[1]
        words = Path(f"/proc/{shell}/cmdline").read_bytes().split(b"\0")
        path = next(Path(os.fsdecode(w)) for w in words if w.endswith(b"/slurm_script"))
        with path.open("rb") as f:
            return f.read(_SCRIPT_MAX_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError, IndexError, StopIteration):
        return ""


@dataclass
class JobContext:
    """A job, as far as its supervisor needs it.

    Attributes:
        previous: The claim that the attempt before left, None on a first run.
        can_claim: Whether the Comment may be written (the owner's, protocol understood).
        refused: Why the last claim was not taken, in Slurm's words; empty where it was.
    """

    client: SlurmClient
    cluster: str
    job: Job
    previous: Claim | None
    claim: Claim
    can_claim: bool = True
    refused: str = ""
    _saying: asyncio.Lock = field(default_factory=asyncio.Lock)
    _tasks: set[asyncio.Task[bool]] = field(default_factory=set)

    @property
    def ref(self) -> JobRef:
        """How Slurm's commands address it."""
        return self.job.ref

    @property
    def attempt_id(self) -> Attempt:
        """This run of it."""
        return Attempt(self.cluster, self.ref.address, self.job.restart_count, self.job.start_at_s)

    @property
    def name(self) -> str:
        """Its name in paths, as in `slurm-%A_%a.out`."""
        return self.ref.address

    @property
    def resumed(self) -> bool:
        """True where an earlier attempt of this job wanted a requeue, or was requeued by anyone."""
        return self.previous is not None and self.previous.restart < self.job.restart_count

    @property
    def asked(self) -> bool:
        """True where this very attempt has asked for a requeue already, and nobody has taken that back."""
        p = self.previous
        return p is not None and p.state == claim.STATE_WANTS_REQUEUE and p.restart == self.job.restart_count

    def output(self) -> Path | None:
        """The job's output file, as far as Slurm tells."""
        return Path(self.job.std_out) if self.job.std_out.startswith("/") and "%" not in self.job.std_out else None

    async def say(self, **changes: object) -> bool:
        """Write the claim with these changes; False where Slurm did not take it (training goes on)."""
        async with self._saying:
            # Nothing is suspected any more, unless that is what is said.
            now = {"at_s": round(time.time(), 3), "suspected_at_s": 0.0, **changes}
            self.claim = replace(self.claim, **now)  # type: ignore[arg-type]
            if not self.can_claim:
                self.refused = "the Comment is another owner's, or a newer version's"
                return False
            try:
                # Read anew each time: the user's words may have changed since.
                job = await asyncio.to_thread(self.client.job, self.ref)
                words = claim.split(job.comment)[0] if job is not None else ""
                text = claim.render(self.claim, words)
                await asyncio.to_thread(lambda: self.client.update_job(self.ref, comment=text))
            except (SlurmError, ClaimError) as error:
                self.refused = str(error)
                return False
            self.refused = ""
            return True

    def suspect(self) -> None:
        """Have it said, without waiting for it, that something seems wrong: the daemon then listens more closely."""
        if not self.claim.suspected_at_s:
            self._soon({"suspected_at_s": round(time.time(), 3)})

    def clear(self) -> None:
        """Take that back."""
        if self.claim.suspected_at_s:
            self._soon({})

    async def report(self, incident: str, verdict: Verdict, plan: Plan, times: Mapping[str, float], mode: Mode) -> None:
        """Tell the daemon of a plan that asks nothing of it: its journal is where the admins look.

        Where the plan is carried out, this does not wait for Slurm: nothing may hold up the way back. Where it is not,
        the job may end in a moment, and its last words are waited for.
        """
        named = {s.node for s in verdict.suspects if s.node}
        words: dict[str, object] = {
            "incident": incident,
            "road": plan.road.value,
            "mode": mode.value,
            "evict": plan.evict[: claim.MAX_NODES],
            # There is little room: the same names do not stand in it twice.
            "suspects": () if named == set(plan.evict) else tuple(sorted(named))[: claim.MAX_NODES],
            "conclusion": verdict.conclusion.value,
            "confidence": round(max((s.confidence for s in verdict.suspects), default=0.0), 3),
            "why": plan.reason,
            "times": dict(times),
            "suspected_at_s": self.claim.suspected_at_s or round(time.time(), 3),
        }
        if mode is Mode.ACT and plan.road is Road.STOP:
            # Told with the job's last word, which follows: a report after that would call a job suspected that is over.
            self.claim = replace(self.claim, **words)  # type: ignore[arg-type]
        elif mode is Mode.ACT:
            self._soon(words)
        else:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.say(**words), _LAST_WORD_S)

    def _soon(self, changes: dict[str, object]) -> None:
        task = asyncio.get_running_loop().create_task(self.say(**changes))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def read(client: SlurmClient, ref: JobRef) -> JobContext:
    """Ask Slurm about the job.

    Raises:
        NoJobError: Slurm does not know it.
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
    said = previous
    if previous is not None and previous.state == claim.STATE_DONE and previous.restart == job.restart_count:
        previous = None  # an earlier run of the same script is over: this is another training
    mine = Claim(
        state=claim.STATE_WATCHING,
        lineage=previous.lineage if previous else secrets.token_hex(6),
        restart=job.restart_count,
        incident=previous.incident if previous else "",
        fruitless=previous.fruitless if previous else 0,
        step=previous.step if previous else -1,
        failed=said.failed if said else 0,
        failed_since_s=said.failed_since_s if said else 0.0,
    )
    can_claim = can_claim and job.uid == os.getuid()
    return JobContext(client, client.cluster_name(), job, previous, mine, can_claim)
