"""One case on this machine: ranks, an agent a node as the watch step starts it, and the supervisor's own captures.

Only Slurm is left out: nodes are names in the ranks' environment, and exits are read from the processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import slurm_robust
from real.cases import Case
from real.transport import Transport
from slurm_robust.config.site import Config
from slurm_robust.core.model import Conclusion, Incident, JobRef, Verdict
from slurm_robust.localize.evidence import RankExit
from slurm_robust.marks.claim import STATE_WATCHING, Claim
from slurm_robust.slurm.client import Job
from slurm_robust.supervise.agent import messages, wire
from slurm_robust.supervise.incident.incident_log import IncidentLog
from slurm_robust.supervise.incident.investigation import Investigation
from slurm_robust.supervise.incident_folder import IncidentFolder
from slurm_robust.supervise.job import SupervisedJob
from slurm_robust.supervise.launch import attempt_settings
from slurm_robust.supervise.launch.attempt_settings import ResumePoint
from slurm_robust.supervise.reported.agents import Agents
from slurm_robust.supervise.reported.watch_step import py_spy_path
from slurm_robust.supervise.session import Session
from slurm_robust.supervise.watch.attempt_state import AttemptSources, AttemptState

ROOT = Path(slurm_robust.__file__).resolve().parents[1]
RANK = Path(__file__).with_name("rank.py")
STRIKES_WITHIN_S = 90.0
SUSPECTED_AFTER_S = 2.0
"""From the fault to the first capture: what suspicion takes, about."""
CAPTURES = 4
"""Until then nearly every verdict has its final form; what is still missing for an action is time."""
_AGENT = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from slurm_robust.supervise.agent.main import main; main(sys.argv[2:])"
)
_STREAM_LIMIT = 1 << 20
_jobs = itertools.count(4_000_000 + os.getpid() % 100_000 * 100)


@dataclass
class Outcome:
    """What came of one case.

    Attributes:
        how: `exact`, `wrong`, `missed`, or `rightly none`.
        named: Nodes that the verdict names.
        acted_on: The verdict would be acted on before the action limit.
        told: What the judge said, a line.
        took_s: From the fault to the verdict.
        folder: The captures and the ranks' output.
    """

    case: Case
    how: str
    named: tuple[str, ...]
    acted_on: bool
    told: str
    took_s: float
    folder: Path
    verdict: Verdict = field(repr=False)


class _StageAgents(Agents):
    """Sends to the agents of a stage."""

    def __init__(self, session: Session, send: Callable[[messages.ToAgent], None]) -> None:
        super().__init__(session.job.ref.job_id, 0.5, session.receive, lambda _: None)
        self._to_all = send

    def send(self, message: messages.ToAgent) -> None:
        """To all of them."""
        self._to_all(message)


class Stage:
    """Runs one case in a folder of its own.

    Args:
        case: What to play.
        folder: Made, and left.
        recorder: Ranks dump PyTorch's flight recorder when asked, with the settings of `srobust run`.
        transport: Gloo on CPUs, unless named.
    """

    def __init__(self, case: Case, folder: Path, *, recorder: bool = False, transport: Transport | None = None) -> None:
        self.case, self.folder, self.recorder = case, folder, recorder
        self.transport = transport or Transport()
        self.job = next(_jobs)
        self.ranks: dict[int, asyncio.subprocess.Process] = {}
        self._agents: list[asyncio.subprocess.Process] = []
        self._readers: list[asyncio.Task[None]] = []
        self._sent = 0
        info = Job(JobRef(self.job), "RUNNING", "", os.getuid(), "", nodes=case.nodes)
        client: Any = None  # no Slurm runs this job
        job = SupervisedJob(client, "", info, None, Claim(STATE_WATCHING, ""), can_claim=False)
        session = Session(job, Config(), IncidentFolder(folder, quiet=True))
        session.agents = _StageAgents(session, self._send)
        self.attempt = AttemptState("", AttemptSources(self.job, case.nodes), session.clock)
        self.fleet = self.attempt.fleet
        log = IncidentLog(session)
        log.current = Incident("incident", str(self.job), "", time.time())
        self.investigation = Investigation(session, self.attempt, log)

    # -- processes --------------------------------------------------------------------------------------------------

    def _environment(self, node: str, step: int) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SROBUST_"))}
        return {
            **kept,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'benchmarks'}",
            "SLURM_JOB_ID": str(self.job),
            "SLURM_STEP_ID": str(step),
            "SLURMD_NODENAME": node,
            "SLURM_STEP_NUM_TASKS": str(self.case.world),
            "SLURM_STEP_NUM_NODES": str(len(self.case.nodes)),
        }

    async def _start_rank(self, rank: int) -> None:
        case = self.case
        struck = ",".join(map(str, case.ranks))
        named = {**self.transport.variables, "SLURM_PROCID": str(rank)}
        if self.recorder:
            # Each stage has a folder of its own: that an agent took an attempt's name is not tried here.
            made = attempt_settings.environment({}, "", "", ResumePoint(), self.folder)
            named |= {key: value for key, value in made.items() if key.startswith("TORCH_")}
            named["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] = str(self.folder / "ask-")
        with (self.folder / f"rank-{rank}.out").open("wb") as output:
            self.ranks[rank] = await asyncio.create_subprocess_exec(
                *(sys.executable, str(RANK), str(self.folder), case.program, case.fault, case.where, struck),
                *self.transport.words,
                env={**self._environment(case.node(rank), 0), **named},
                # Input that stays open and empty: a terminal at which nobody sits.
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    async def _start_agent(self, node: str) -> None:
        agent = await asyncio.create_subprocess_exec(
            *(sys.executable, "-S", "-c", _AGENT, str(ROOT), str(self.job), "", "0.5", py_spy_path()),
            env={**self._environment(node, 1), "SROBUST_WATCH": "1"},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_STREAM_LIMIT,
        )
        self._agents.append(agent)
        self._readers.append(asyncio.create_task(self._hear(agent)))

    async def _hear(self, agent: asyncio.subprocess.Process) -> None:
        assert agent.stdout is not None
        decoder = wire.Decoder()
        while line := await agent.stdout.readline():
            message = decoder.feed(line.decode("utf-8", "replace"))
            if message is not None:
                self.fleet.feed(messages.from_agent(message), time.time())

    def _send(self, message: messages.ToAgent) -> None:
        self._sent += 1
        text = "".join(line + "\n" for line in wire.encode("stage", self._sent, messages.encode(message)))
        for agent in self._agents:
            if agent.stdin is not None and not agent.stdin.is_closing():
                agent.stdin.write(text.encode())

    @contextlib.asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        try:
            for rank in range(self.case.world):
                await self._start_rank(rank)
            for node in self.case.nodes:
                await self._start_agent(node)
            yield
        finally:
            for process in self.ranks.values():
                # The whole session of a rank, loaders and children of its own with it.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            for agent in self._agents:
                with contextlib.suppress(ProcessLookupError):
                    agent.kill()
            await asyncio.gather(*(p.wait() for p in (*self.ranks.values(), *self._agents)))
            await asyncio.gather(*self._readers, return_exceptions=True)

    # -- the case ---------------------------------------------------------------------------------------------------

    async def play(self) -> Outcome:
        """Let the fault strike, look at it as the supervisor does, and judge.

        Raises:
            TimeoutError: the fault did not strike; the ranks' output tells why.
        """
        self.folder.mkdir(parents=True)
        async with self._running():
            await self._struck()
            struck_s = time.monotonic()
            await asyncio.sleep(SUSPECTED_AFTER_S)
            for _ in range(CAPTURES):
                if self.fleet.alive:
                    await self.investigation.capture()
                self._note_exits()
                verdict = self.investigation.judge()
                if verdict.corroborated or not self.fleet.alive:
                    break
                await asyncio.sleep(self.case.every_s)
            took_s = time.monotonic() - struck_s
        return outcome_of(self.case, verdict, took_s, self.folder)

    async def _struck(self) -> None:
        deadline = time.monotonic() + STRIKES_WITHIN_S
        marks = [self.folder / f"struck-{rank}" for rank in self.case.ranks]
        # What no agent has found yet cannot be captured, and would be right for no reason.
        while not all(mark.exists() for mark in marks) or not self._found():
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"{self.case.name}: the fault did not strike, or no agent found its ranks; see {self.folder}"
                )
            await asyncio.sleep(0.1)

    def _found(self) -> bool:
        return all(rank in self.fleet.ranks or p.returncode is not None for rank, p in self.ranks.items())

    def _note_exits(self) -> None:
        """What srun would say of ranks that ended. Seen at one look, they carry its time: their order is not known."""
        for rank, process in self.ranks.items():
            code = process.returncode
            if code is None or rank in self.attempt.exits:
                continue
            lines = (self.folder / f"rank-{rank}.out").read_text(errors="replace").splitlines()
            died = {"signal": -code} if code < 0 else {"exit_code": code}
            gone_s = self.fleet.ranks[rank].gone_at_s if rank in self.fleet.ranks else 0.0
            self.attempt.exits[rank] = RankExit(
                rank, self.case.node(rank), gone_s or time.time(), last_lines=tuple(lines[-20:]), **died
            )


def outcome_of(
    case: Case, verdict: Verdict, took_s: float, folder: Path, names: Mapping[str, str] | None = None
) -> Outcome:
    """What the verdict is worth; kept in the case's folder.

    Args:
        case: What was played.
        verdict: The last.
        took_s: From the fault to it.
        folder: The case's.
        names: The case's names of the nodes that the verdict may name; None if they are the same.
    """
    found = dict.fromkeys(s.node for s in verdict.suspects if s.node)
    named = tuple(names[node] if names is not None else node for node in found)
    told = f"{verdict.conclusion.value}: {verdict.reason}" + (f" ({verdict.detail})" if verdict.detail else "")
    acted_on = verdict.corroborated and verdict.conclusion is Conclusion.CULPRIT
    outcome = Outcome(case, grade(case, named), named, acted_on, told, took_s, folder, verdict)
    shown = {"case": case.name, "outcome": outcome.how, "right": case.right, "struck": sorted(case.struck)}
    (folder / "outcome.json").write_text(json.dumps({**shown, "named": named, "told": told}, indent=1))
    return outcome


def grade(case: Case, named: tuple[str, ...]) -> str:
    """`exact`, `wrong`, `missed` or `rightly none`: what naming these nodes is worth in this case."""
    if not named:
        return "missed" if case.right == "node" else "rightly none"
    return "exact" if set(named) == case.struck and case.right != "nobody" else "wrong"
