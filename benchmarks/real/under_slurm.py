"""One case on a real Slurm: `srobust run`, observing, starts the ranks, suspects, captures and judges by itself."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from real.cases import Case
from real.stage import CAPTURES, RANK, ROOT, STRIKES_WITHIN_S, Outcome, outcome_of
from real.transport import Transport
from slurm_robust.core.model import Conclusion, Incident, Verdict
from slurm_robust.devcluster.cluster import DevCluster, Spec
from slurm_robust.slurm.values import expand
from slurm_robust.supervise.incident.incident_log import load
from slurm_robust.supervise.incident_folder import STORY_FILE

NODES = 8
SUPERVISE = {
    # A site waits longer; the order of things is the same.
    "suspicion_floor_s": 1.5,
    "corroborate_after_s": 2.5,
    "tick_s": 0.5,
    "suspicions_per_hour": 60,
}
SILENT_FOR_S = 60.0
"""Without an incident so long after the fault, there is none."""
_ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY")
_POLL_S = 0.3


def bring_up() -> DevCluster:
    """A cluster of this machine for all cases, without a daemon."""
    return DevCluster.up(Spec(nodes=NODES, robust_yaml={"supervise": SUPERVISE}), timeout_s=60)


class SlurmStage:
    """Runs one case as a job.

    Args:
        case: What to play; its nodes are taken in the order in which Slurm numbers the ranks.
        folder: Made, and left.
        cluster: With as many free nodes as the case has, at some time.
        transport: Gloo on CPUs, unless named.
    """

    def __init__(self, case: Case, folder: Path, cluster: DevCluster, transport: Transport | None = None) -> None:
        self.case, self.folder, self.cluster = case, folder, cluster
        self.transport = transport or Transport()
        self.job = ""

    async def play(self) -> Outcome:
        """Submit, wait for the supervisor's verdict, cancel.

        Raises:
            TimeoutError: the fault did not strike; the job's output tells why.
        """
        self.folder.mkdir(parents=True)
        self.folder.chmod(0o777)
        self.job = await self._run("sbatch", "--parsable", *self._options(), str(self._script()))
        try:
            await self._struck()
            struck_s = time.monotonic()
            record = await self._judged(struck_s)
            took_s = time.monotonic() - struck_s
            names = await self._names()
        finally:
            with contextlib.suppress(subprocess.CalledProcessError):
                await self._run("scancel", self.job)
            await self._over()
        verdict = record.verdict if record is not None else None
        verdict = verdict or Verdict(Conclusion.NONE, "nothing was suspected")
        return outcome_of(self.case, verdict, took_s, self.folder, names)

    # -- the job ----------------------------------------------------------------------------------------------------

    def _options(self) -> list[str]:
        case = self.case
        return [
            *(f"--nodes={len(case.nodes)}", f"--ntasks={case.world}", f"--ntasks-per-node={case.per_node}"),
            *("--exclusive", "--no-requeue", f"--output={self.folder}/job.out", f"--chdir={self.folder}"),
        ]

    def _script(self) -> Path:
        case, struck = self.case, ",".join(map(str, self.case.ranks))
        rank = [sys.executable, str(RANK), str(self.folder), case.program, case.fault, case.where, struck]
        rank += self.transport.words
        search = f"{ROOT}{os.pathsep}{ROOT / 'benchmarks'}"
        more = "".join(f" {key}={shlex.quote(value)}" for key, value in self.transport.variables.items())
        script = self.folder / "job.sh"
        script.write_text(
            f"#!/bin/bash\nexport OMP_NUM_THREADS=1 PYTHONPATH={shlex.quote(search)}{more}\n"
            f"srobust run --robust=observe --distribution=block {shlex.join(rank)}\n"
        )
        return script

    async def _run(self, *command: str) -> str:
        done = await asyncio.to_thread(self.cluster.run, list(command))
        return str(done.stdout).strip().split(";")[0]

    async def _state(self) -> str:
        return await self._run("squeue", "-h", "-t", "all", "-o", "%T", "-j", self.job)

    async def _names(self) -> dict[str, str]:
        """The case's name of each of the job's nodes."""
        found = await self._run("squeue", "-h", "-t", "all", "-o", "%N", "-j", self.job)
        return dict(zip(expand(found), self.case.nodes, strict=True))

    async def _over(self) -> None:
        deadline = time.monotonic() + STRIKES_WITHIN_S
        while True:
            if await self._state() in _ENDED or time.monotonic() > deadline:
                return
            await asyncio.sleep(_POLL_S)

    # -- what the supervisor says -----------------------------------------------------------------------------------

    async def _struck(self) -> None:
        marks = [self.folder / f"struck-{rank}" for rank in self.case.ranks]
        deadline = time.monotonic() + STRIKES_WITHIN_S
        while not all(mark.exists() for mark in marks):
            if await self._state() == "PENDING":
                deadline = time.monotonic() + STRIKES_WITHIN_S  # another case has its nodes
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.case.name}: the fault did not strike; see {self.folder}/job.out")
            await asyncio.sleep(_POLL_S)

    async def _judged(self, struck_s: float) -> Incident | None:
        """The newest incident, once it is sure, or was looked at often enough, or the job is over."""
        while True:
            state = await self._state()
            record = self._record()
            if record is not None and record.verdict is not None:
                sure = record.verdict.corroborated
                if sure or self._captures(record.id) >= CAPTURES or state in _ENDED:
                    return record
            elif state in _ENDED or time.monotonic() - struck_s > SILENT_FOR_S:
                return record
            await asyncio.sleep(_POLL_S)

    def _record(self) -> Incident | None:
        found = sorted(self.folder.glob(f"slurm-robust-{self.job}/*/incident.json"), key=lambda p: p.stat().st_mtime)
        return load(found[-1].read_bytes()) if found else None

    def _captures(self, incident: str) -> int:
        path = self.folder / f"slurm-robust-{self.job}" / STORY_FILE
        lines: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
        return sum(line["kind"] == "captured" and line.get("incident") == incident for line in lines)
