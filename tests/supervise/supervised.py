"""A supervisor's session with fakes at its edges: Slurm, the agents on the nodes, the launcher, and the clock."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from fake_slurm import FakeSlurm

from slurm_robust.config.site import Config
from slurm_robust.core.model import Mode
from slurm_robust.marks.claim import STATE_WATCHING, Claim
from slurm_robust.supervise.agent import messages
from slurm_robust.supervise.agent.messages import from_agent
from slurm_robust.supervise.agent.warm_messages import AskWarm, WarmAnswer
from slurm_robust.supervise.clock import Clock
from slurm_robust.supervise.incident_folder import IncidentFolder
from slurm_robust.supervise.job import SupervisedJob
from slurm_robust.supervise.launch.channel import Channel
from slurm_robust.supervise.launch.messages import LaunchSrun, StartedEarly, WarmEnded, WarmOrder
from slurm_robust.supervise.launch.srun_command import parse
from slurm_robust.supervise.launch.user_end import Received
from slurm_robust.supervise.reported.agents import Agents
from slurm_robust.supervise.session import Session
from slurm_robust.supervise.watch.attempt_state import AttemptSources, AttemptState

NODES = ("n1", "n2")
WAITS = {
    "waits": [
        {
            "name": "MainThread",
            "main": True,
            "os_thread_id": 1,
            "frames": [["main", "/home/u/train.py", 9], ["all_reduce", "torch/distributed/distributed_c10d.py", 3252]],
        }
    ]
}
"""The stacks of an archive in which a rank waits for its peers."""


def in_d_state(rank: int) -> list[dict[str, Any]]:
    """The processes of a rank, of which rank 1 is in D state, and the others wait for it; see `WAITS`."""
    process = {"pid": 100 + rank, "cpu_s": 1.0, "io_bytes": 1}
    return [{**process, "state": "D"} if rank == 1 else {**process, "state": "S", "stack": "waits"}]


class FakeClock(Clock):
    """A clock that only sleeping, and the test, move."""

    def __init__(self, now_s: float = 1_000_000.0) -> None:
        self.at_s = now_s
        self.sleeps = 0
        self.on_sleep: Callable[[], None] | None = None

    def now_s(self) -> float:
        """Wall time."""
        return self.at_s

    def monotonic_s(self) -> float:
        """The same."""
        return self.at_s

    def worked_s(self) -> float:
        """No work takes time."""
        return 0.0

    async def sleep(self, seconds: float) -> None:
        """It takes no time."""
        self.at_s += seconds
        self.sleeps += 1
        assert self.sleeps < 20_000, "what is awaited does not come"
        if self.on_sleep is not None:
            self.on_sleep()
        await asyncio.sleep(0)


class FakeAgents(Agents):
    """Agents that answer at once, as the test wants; none is started."""

    def __init__(self, session: Session) -> None:
        super().__init__(5, 0.5, session.receive, lambda _: None)
        self._session = session
        self.present = False
        self.looked_back_s = 0.0
        self.silent: list[str] = []
        self.sent: list[messages.ToAgent] = []
        self.stops = 0
        self.still_running: dict[str, list[int]] = {}
        """Node → processes that it cannot kill."""
        self.processes: Callable[[int], list[dict[str, Any]]] = lambda rank: []
        """Rank → its processes, as an archive has them."""
        self.stacks: dict[str, Any] = WAITS
        """The stacks that these processes refer to."""
        self.warm: Callable[[str, AskWarm], WarmAnswer] = lambda node, ask: WarmAnswer(node, ask.request_id)
        """What a node answers about its warm processes."""

    @property
    def running(self) -> bool:
        """Whether the watch step lives."""
        return self.present

    async def start(self, nodes: Sequence[str], attempt: str) -> None:
        """They are there."""
        self.present = True

    async def stop(self) -> None:
        """They are gone."""
        self.present = False
        self.stops += 1

    async def look_after(self, nodes: Sequence[str], heard_at_s: Mapping[str, float], silent_s: float) -> list[str]:
        """The nodes whose agent is silent."""
        return [n for n in self.silent if n in nodes]

    def look_back(self, seconds: float) -> None:
        """As far as they are told."""
        self.looked_back_s = seconds

    def watch_attempt(self, attempt: str) -> None:
        """Another attempt."""

    def send(self, message: messages.ToAgent) -> None:
        """Answer on behalf of every node that is not silent."""
        self.sent.append(message)
        fleet = self._session.fleet
        nodes = set(self._session.job.info.nodes)
        for node in sorted(nodes - set(self.silent)):
            if isinstance(message, messages.TakeCapture):
                ranks = [{"rank": r.rank, "processes": self.processes(r.rank)} for r in fleet.alive if r.node == node]
                body = {"v": 1, "at_s": 1.0, "round": 1, "ranks": ranks, "stacks": self.stacks, "node": node}
                blob = base64.b64encode(zlib.compress(json.dumps(body).encode())).decode()
                self._session.receive(from_agent({"t": "cap", "n": node, "id": message.capture_id, "blob": blob}))
            elif isinstance(message, messages.CleanUp):
                left = tuple(self.still_running.get(node, ()))
                self._session.receive(messages.Cleaned(node, message.request_id, left))
            elif isinstance(message, AskWarm) and message.only in ("", node):
                self._session.receive(self.warm(node, message))


class FakeChannel(Channel):
    """A launcher that does as it is told, without any process."""

    def __init__(self) -> None:
        self.gone, self.ready, self.changed = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.running_attempt = ""
        self.early: StartedEarly | None = None
        self.evicted: tuple[str, ...] = ()
        self.ended: int | None = None
        self.signals: list[Received] = []
        self.launched: list[tuple[list[str], dict[str, str], str]] = []
        self.orders: list[str] = []
        self.warm_ended: WarmEnded | None = None
        self.warm_orders: list[WarmOrder] = []

    def warm(self, order: WarmOrder) -> None:
        """A warm step is started, adopted or ended."""
        self.warm_orders.append(order)

    def launch(self, order: LaunchSrun) -> None:
        """Srun is started."""
        self.ended, self.running_attempt, self.evicted = None, order.attempt, order.evicted
        self.launched.append((list(order.argv), dict(order.env), order.attempt))

    def prepare(self, within_s: float) -> None:
        """The launcher waits."""
        self.orders.append("prepare")

    def kill(self) -> None:
        """Srun is killed."""
        self.orders.append("kill")
        self.ended = 137

    async def exit(self, code: int) -> None:
        """The launcher exits."""
        self.orders.append(f"exit {code}")

    async def part(self, argv: Sequence[str], nap_s: float) -> None:
        """The launcher becomes the waiting shell."""
        self.orders.append("part")

    async def wait_ended(self, timeout_s: float) -> bool:
        """Whether srun has ended."""
        return self.ended is not None


class World:
    """A job of two nodes with a rank each, and the session of its supervisor.

    Args:
        folder: For the incident folder.
        command: The words behind `srobust run`; None for `srobust attach`.
        config: The site's choices; by default plans are carried out.
        supervise: Changes of the section `supervise`.
        ladder: Changes of the section `ladder`; without any there is no ladder.
        nodes: Of the allocation.
        job: Changes of Slurm's job.
        more: Further fields of the session.
    """

    def __init__(
        self,
        folder: Path,
        *,
        command: str | None = None,
        config: Config | None = None,
        supervise: Mapping[str, Any] | None = None,
        ladder: Mapping[str, Any] | None = None,
        nodes: tuple[str, ...] = NODES,
        job: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:
        config = config or Config(mode=Mode.ACT)
        section = msgspec.structs.replace(config.supervise, **(supervise or {}))
        climbed = msgspec.structs.replace(config.ladder, **({"tests": ()} if ladder is None else ladder))
        config = msgspec.structs.replace(config, supervise=section, ladder=climbed)
        self.clock = FakeClock()
        self.slurm = FakeSlurm(nodes=max(6, len(nodes)))
        info = self.slurm.run_job(nodes, **{"uid": os.getuid(), **(job or {})})
        self.job = SupervisedJob(self.slurm, "fake", info, None, Claim(STATE_WATCHING, "line"), clock=self.clock)
        self.channel = FakeChannel() if command is not None else None
        self.session = Session(
            self.job,
            config,
            IncidentFolder(folder, quiet=True, clock=self.clock),
            channel=self.channel,
            command=parse(command.split()) if command is not None else None,
            clock=self.clock,
            **{"environment": {"PATH": os.environ["PATH"]}, **more},
        )
        self.agents = FakeAgents(self.session)
        self.session.agents = self.agents

    def attempt(self, name: str = "1.0.1.1", **sources: Any) -> AttemptState:
        """An attempt of this job, without a supervisor."""
        made = AttemptState(name, replace(self.sources, **sources), self.clock)
        self.session.fleet = made.fleet
        return made

    @property
    def sources(self) -> AttemptSources:
        """What an attempt of this job is read from."""
        return AttemptSources(self.job.ref.job_id, self.job.info.nodes)

    # -- what agents report -------------------------------------------------------------------------------------------

    def finds_ranks(self, count: int = 2, nodes: tuple[str, ...] | None = None) -> None:
        """The agents find so many ranks, one a node."""
        for rank in range(count):
            self.finds(rank, (nodes or self.job.info.nodes)[rank], world=count)

    def finds(self, rank: int, node: str, *, world: int, pid: int = 0) -> None:
        """An agent finds a rank."""
        found = {"t": "rank", "n": node, "rank": rank, "pid": pid or 100 + rank, "step_id": "0", "world": world}
        self.session.receive(from_agent({**found, "at": self.clock.at_s, "nodes": min(world, 2)}))

    def steps(self, step: int, *, ranks: int = 2, phase: str = "train") -> None:
        """All ranks report this step."""
        for rank in range(ranks):
            entry = [rank, step, phase, 0.0, step + 1, None, None, None]
            self.session.receive(from_agent({"t": "p", "n": f"n{rank + 1}", "r": [entry]}))

    def trains(self, steps: int = 20, *, each_s: float = 1.0) -> None:
        """Training goes on for so many steps."""
        for step in range(steps):
            self.clock.at_s += each_s
            self.steps(step)

    def loses(self, rank: int) -> None:
        """An agent no longer finds a rank."""
        gone = {"t": "gone", "n": f"n{rank + 1}", "rank": rank, "pid": 100 + rank, "at": self.clock.at_s}
        self.session.receive(from_agent(gone))

    # -- what was written ---------------------------------------------------------------------------------------------

    @property
    def story(self) -> list[dict[str, Any]]:
        """The lines of the story."""
        path = self.session.folder.path / "story.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def kinds(self) -> list[str]:
        """Their kinds, in order."""
        return [line["kind"] for line in self.story]

    def text(self, kind: str) -> str:
        """The text of the last line of this kind."""
        return next((str(line["text"]) for line in reversed(self.story) if line["kind"] == kind), "")

    @property
    def incidents(self) -> list[dict[str, Any]]:
        """The incidents as they were written, oldest first."""
        files = sorted(self.session.folder.path.glob("*/incident.json"))
        return [json.loads(path.read_text()) for path in files]
