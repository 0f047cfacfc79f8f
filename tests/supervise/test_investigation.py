"""Captures of a fleet whose agents are quick, slow or dead."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import msgspec

sys.path.append(str(Path(__file__).resolve().parents[1] / "localize"))

from recorder_dumps import entry, plain  # type: ignore[import-not-found]

from slurm_robust.config import SuperviseConfig
from slurm_robust.model import Conclusion
from slurm_robust.supervise.incident.incident_folder import Folder
from slurm_robust.supervise.incident.incident_page import Record
from slurm_robust.supervise.incident.investigation import Investigator, Scene
from slurm_robust.supervise.watch.fleet import Fleet

ARCHIVE = {"v": 1, "at_s": 1.0, "round": 1, "ranks": [], "stacks": {}}
NODES = ("n1", "n2", "n3", "n4")


class Agents:
    """Four nodes with a rank each; what they do when a capture is asked of them is up to the test."""

    def __init__(self, folder: Path, *, slow: str = "", dead: str = "", limit_s: float = 0.2) -> None:
        self.slow, self.dead = slow, dead
        self.fleet = Fleet("a")
        for number, node in enumerate(NODES):
            found = {"t": "rank", "n": node, "rank": number, "pid": 100 + number, "step_id": "0", "world": 4, "at": 1.0}
            self.fleet.feed(found, time.time() - (100 if node == dead else 0))
        self.late: list[dict[str, Any]] = []
        config = msgspec.structs.replace(SuperviseConfig(), capture_timeout_s=limit_s)
        self.inquiry = Investigator(
            config, self.asked, self.fleet, folder=Folder(folder), record=Record("i", "5", "a", 1.0), scene=Scene(NODES)
        )

    def asked(self, kind: str, **fields: Any) -> None:
        """All answer at once, but for the slow and the dead."""
        for node in NODES:
            blob = base64.b64encode(zlib.compress(json.dumps({**ARCHIVE, "node": node}).encode())).decode()
            message = {"t": "cap", "n": node, "id": fields["id"], "blob": blob}
            if node == self.slow:
                self.late.append(message)
            elif node != self.dead:
                self.fleet.feed(message, time.time())


def test_a_node_that_is_slow_is_not_missing(tmp_path: Path) -> None:
    """Its heartbeats come: its ranks are unseen, nothing is held against it, and what comes late is not kept."""
    agents = Agents(tmp_path / "story", slow="n2")
    for _ in range(2):
        taken = asyncio.run(agents.inquiry.capture())
        assert taken.missing_nodes == ()
        assert [(r.rank, r.node) for r in taken.ranks] == [(1, "n2")]
    verdict = agents.inquiry.judge()
    assert (verdict.conclusion, verdict.suspects) == (Conclusion.UNDETERMINED, ())
    assert any("too slow" in what for what in verdict.missing)
    for message in agents.late:
        agents.fleet.feed(message, time.time())
    assert agents.fleet.archives == {}


def test_a_slow_node_is_waited_for_while_it_lives(tmp_path: Path) -> None:
    """As long again as a capture may take."""
    agents = Agents(tmp_path / "story", slow="n2")

    async def late() -> None:
        capture = asyncio.create_task(agents.inquiry.capture())
        await asyncio.sleep(0.3)
        agents.fleet.feed(agents.late[0], time.time())
        assert (await capture).ranks == ()

    asyncio.run(late())
    assert "too slow" not in (tmp_path / "story" / "story.jsonl").read_text()


def test_a_node_whose_agent_is_silent_is_missing_and_holds_nobody_up(tmp_path: Path) -> None:
    """No heartbeat for seven seconds: the others' stacks are enough."""
    agents = Agents(tmp_path / "story", dead="n3", limit_s=60.0)
    began = time.monotonic()
    assert asyncio.run(agents.inquiry.capture()).missing_nodes == ("n3",)
    assert time.monotonic() - began < 30


def test_recorder_dumps_of_a_capture_are_judged_with_the_stacks(tmp_path: Path) -> None:
    """Three ranks wait in a collective that rank 2 never joined: its node is named, whatever the stacks say."""
    agents = Agents(tmp_path / "story")

    def dump(rank: int) -> dict[str, Any]:
        joined = rank != 2
        pending = [entry(3, 4)] if joined else []
        known = [entry(2, 3, state="completed")]
        return plain([*known, *pending], {0: (4 if joined else 3, 3)}, {"0": range(4)})

    asked: list[tuple[bool, str]] = []

    def answer(kind: str, **fields: Any) -> None:
        asked.append((fields["recorder"], fields["ras"]))
        for rank, node in enumerate(NODES):
            recorder = {"error": "garbled"} if rank == 3 else {"dump": dump(rank)}
            told = {**ARCHIVE, "node": node, "ranks": [{"rank": rank, "recorder": recorder}]}
            blob = base64.b64encode(zlib.compress(json.dumps(told).encode())).decode()
            agents.fleet.feed({"t": "cap", "n": node, "id": fields["id"], "blob": blob}, time.time())

    agents.inquiry._tell = answer
    for _ in range(2):
        asyncio.run(agents.inquiry.capture())
    verdict = agents.inquiry.judge()
    assert [s.node for s in verdict.suspects] == ["n3"]
    assert "never joined all_reduce 4" in verdict.reason
    told = (tmp_path / "story" / "story.jsonl").read_text()
    assert told.count("garbled") == 1, "what cannot be read is said once"
    asyncio.run(agents.inquiry.capture(keep=False))
    assert asked == [(True, "n2"), (True, "n3"), (False, "")], "a quiet look asks neither recorders nor NCCL"
