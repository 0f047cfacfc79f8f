"""Captures of a fleet whose agents are quick, slow or dead."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "localize"))

from recorder_dumps import entry, plain  # type: ignore[import-not-found]
from supervised import FakeAgents, World

from slurm_robust.core.model import Conclusion
from slurm_robust.localize.evidence_folder import read_folder
from slurm_robust.localize.judge import judge
from slurm_robust.supervise.agent import messages
from slurm_robust.supervise.agent.messages import TakeCapture, from_agent
from slurm_robust.supervise.agent.mount_messages import CheckMounts, MountsChecked
from slurm_robust.supervise.incident.incident_log import IncidentLog
from slurm_robust.supervise.incident.investigation import Investigation

ARCHIVE = {"v": 1, "at_s": 1.0, "round": 1, "ranks": [], "stacks": {}}
NODES = ("n1", "n2", "n3", "n4")


class Nodes(FakeAgents):
    """Four nodes with a rank each; what they do when a capture is asked of them is up to the test."""

    def __init__(self, folder: Path, *, slow: str = "", dead: str = "", limit_s: float = 0.2) -> None:
        world = World(folder, nodes=NODES, supervise={"capture_timeout_s": limit_s})
        super().__init__(world.session)
        world.session.agents = self
        self.world, self.clock = world, world.clock
        self.slow, self.dead = slow, dead
        self.attempt = attempt = world.attempt("a")
        self.fleet = attempt.fleet
        for number, node in enumerate(NODES):
            found = {"t": "rank", "n": node, "rank": number, "pid": 100 + number, "step_id": "0", "world": 4, "at": 1.0}
            self.fleet.feed(from_agent(found), self.clock.at_s - (100 if node == dead else 0))
        self.late: list[dict[str, Any]] = []
        self.answer: Callable[..., None] = self.answers
        log = IncidentLog(world.session)

        async def opens() -> None:
            log.open("a", 1.0, "silence suspected")

        asyncio.run(opens())
        self.investigation = Investigation(world.session, attempt, log)

    def send(self, message: messages.ToAgent) -> None:
        """A capture is asked for."""
        assert isinstance(message, messages.TakeCapture)
        self.answer(message)

    def answers(self, asked: messages.TakeCapture) -> None:
        """All answer at once, but for the slow and the dead."""
        for node in NODES:
            blob = base64.b64encode(zlib.compress(json.dumps({**ARCHIVE, "node": node}).encode())).decode()
            message = {"t": "cap", "n": node, "id": asked.capture_id, "blob": blob}
            if node == self.slow:
                self.late.append(message)
            elif node != self.dead:
                self.fleet.feed(from_agent(message), self.clock.at_s)


def test_a_node_that_is_slow_is_not_missing(tmp_path: Path) -> None:
    """Its heartbeats come: its ranks are unseen, nothing is held against it, and what comes late is not kept."""
    agents = Nodes(tmp_path / "story", slow="n2")
    for _ in range(2):
        taken = asyncio.run(agents.investigation.capture())
        assert taken.missing_nodes == ()
        assert [(r.rank, r.node) for r in taken.ranks] == [(1, "n2")]
    verdict = agents.investigation.judge()
    assert (verdict.conclusion, verdict.suspects) == (Conclusion.UNDETERMINED, ())
    assert any("too slow" in what for what in verdict.missing)
    for message in agents.late:
        agents.fleet.feed(from_agent(message), agents.clock.at_s)
    assert agents.fleet.archives == {}


def test_a_slow_node_is_waited_for_while_it_lives(tmp_path: Path) -> None:
    """As long again as a capture may take."""
    agents = Nodes(tmp_path / "story", slow="n2")

    began_s = agents.clock.at_s

    def late() -> None:
        if agents.late and agents.clock.at_s >= began_s + 0.3:
            agents.fleet.feed(from_agent(agents.late.pop()), agents.clock.at_s)

    agents.clock.on_sleep = late
    assert asyncio.run(agents.investigation.capture()).ranks == ()
    assert "too slow" not in (tmp_path / "story" / "story.jsonl").read_text()


def test_a_node_whose_agent_is_silent_is_missing_and_holds_nobody_up(tmp_path: Path) -> None:
    """No heartbeat for seven seconds: the others' stacks are enough."""
    agents = Nodes(tmp_path / "story", dead="n3", limit_s=60.0)
    began_s = agents.clock.at_s
    assert asyncio.run(agents.investigation.capture()).missing_nodes == ("n3",)
    assert agents.clock.at_s - began_s < 30


def test_recorder_dumps_of_a_capture_are_judged_with_the_stacks(tmp_path: Path) -> None:
    """Three ranks wait in a collective that rank 2 never joined: its node is named, whatever the stacks say."""
    agents = Nodes(tmp_path / "story")

    def dump(rank: int) -> dict[str, Any]:
        joined = rank != 2
        pending = [entry(3, 4)] if joined else []
        known = [entry(2, 3, state="completed")]
        return plain([*known, *pending], {0: (4 if joined else 3, 3)}, {"0": range(4)})

    asked: list[tuple[bool, str]] = []

    def answer(capture: messages.TakeCapture) -> None:
        asked.append((capture.with_recorder, capture.ras_node))
        for rank, node in enumerate(NODES):
            recorder = {"error": "garbled"} if rank == 3 else {"dump": dump(rank)}
            told = {**ARCHIVE, "node": node, "ranks": [{"rank": rank, "recorder": recorder}]}
            blob = base64.b64encode(zlib.compress(json.dumps(told).encode())).decode()
            agents.fleet.feed(
                from_agent({"t": "cap", "n": node, "id": capture.capture_id, "blob": blob}), agents.clock.at_s
            )

    agents.answer = answer
    for _ in range(2):
        asyncio.run(agents.investigation.capture())
    verdict = agents.investigation.judge()
    assert [s.node for s in verdict.suspects] == ["n3"]
    assert "never joined all_reduce 4" in verdict.reason
    told = (tmp_path / "story" / "story.jsonl").read_text()
    assert told.count("garbled") == 1, "what cannot be read is said once"
    asyncio.run(agents.investigation.capture(keep=False))
    assert asked == [(True, "n2"), (True, "n3"), (False, "")], "a quiet look asks neither recorders nor NCCL"


@pytest.mark.parametrize(("slow", "dead"), [("n2", ""), ("", "n3"), ("n2", "n3")], ids=["slow", "dead", "both"])
def test_what_is_saved_judges_as_the_live_one_did(tmp_path: Path, slow: str, dead: str) -> None:
    """From the incident's folder alone: the same verdict, of quiet captures before the incident, too."""
    agents = Nodes(tmp_path / "story", slow=slow, dead=dead)

    def answer(asked: messages.TakeCapture) -> None:
        for rank, node in enumerate(NODES):
            if node not in (slow, dead):
                member = {"rank": rank, "processes": [{"pid": 100 + rank, "state": "S"}]}
                told = {
                    **ARCHIVE,
                    "node": node,
                    "round": asked.round_number,
                    "at_s": 2.0 * asked.round_number,
                    "ranks": [member],
                }
                blob = base64.b64encode(zlib.compress(json.dumps(told).encode())).decode()
                message = {"t": "cap", "n": node, "id": asked.capture_id, "blob": blob}
                agents.fleet.feed(from_agent(message), agents.clock.at_s)

    agents.answer = answer
    quiet = Investigation(agents.world.session, agents.attempt)
    for _ in range(2):
        asyncio.run(quiet.capture(keep=False))
    agents.investigation.take_over(quiet)
    asyncio.run(agents.investigation.capture())
    verdict = agents.investigation.judge()
    saved = read_folder(next(tmp_path.glob("story/*/circumstances.json")).parent)
    assert saved.problems == ()
    assert len(saved.evidence.captures) == 3
    assert judge(saved.evidence) == verdict


def test_other_nodes_are_asked_about_a_mount_that_is_silent_on_one(tmp_path: Path) -> None:
    """Once; and what they answer is evidence, of this incident and of no later one."""
    world = World(tmp_path, nodes=NODES)
    attempt = world.attempt()
    world.finds_ranks(4)
    investigation = Investigation(world.session, attempt)

    def captured() -> int:
        return [m.capture_id for m in world.agents.sent if isinstance(m, TakeCapture)][-1]

    async def captures() -> None:
        await investigation.capture(keep=False)
        for _ in range(20):
            world.session.receive(MountsChecked("n2", captured(), ("/data",), ("/home",)))
            await investigation.capture(keep=False)

    asyncio.run(captures())
    asked = [m for m in world.agents.sent if isinstance(m, CheckMounts)]
    assert [m.mounts for m in asked] == [("/data",)]
    for node in ("n1", "n3"):
        world.session.receive(MountsChecked(node, asked[0].request_id, (), ("/data",)))
    (found,) = investigation.evidence.dead_mounts
    assert (found.mount, found.node, found.answers_on) == ("/data", "n2", ("n1", "n3"))
    world.clock.at_s += 600.0
    later = Investigation(world.session, attempt)
    asyncio.run(later.capture(keep=False))
    assert later.evidence.dead_mounts == ()
