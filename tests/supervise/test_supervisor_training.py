"""What one supervisor tells of its training, without a cluster."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from slurm_robust.claim import STATE_WATCHING, Claim
from slurm_robust.config import Config
from slurm_robust.model import JobRef
from slurm_robust.slurm.client import Job
from slurm_robust.supervise.incident.incident_folder import Folder
from slurm_robust.supervise.job import JobContext
from slurm_robust.supervise.supervisor import Supervisor


def watching(tmp_path: Path) -> Supervisor:
    """`srobust attach`, beside a job of two nodes whose agents have not found anything so far."""
    job = Job(JobRef(5), "RUNNING", "ann", 1000, "main", nodes=("n1", "n2"))
    client: Any = None
    context = JobContext(client, "c", job, None, Claim(STATE_WATCHING, lineage="x"), can_claim=False)
    return Supervisor(context, Config(), Folder(tmp_path, quiet=True))


def found(supervisor: Supervisor, rank: int, *, world: int) -> None:
    """An agent finds this rank, at work at step 7."""
    fleet, node = supervisor.present.fleet, f"n{rank // 2 + 1}"
    message = {"t": "rank", "n": node, "rank": rank, "pid": 100 + rank, "step_id": "0", "world": world, "at": 1.0}
    fleet.feed(message, 1.0)
    fleet.feed({"t": "p", "n": node, "r": [[rank, 7, "train", 1.0, 7, None, None, None]]}, 1.0)


def told(tmp_path: Path) -> str:
    """The story so far."""
    story = tmp_path / "story.jsonl"
    return story.read_text() if story.exists() else ""


def test_ranks_are_counted_when_all_are_found(tmp_path: Path) -> None:
    """Agents of a job that already runs find its ranks one after the other: "1 ranks on n1" would be no count."""
    supervisor = watching(tmp_path)
    for rank in range(4):
        assert "training at step" not in told(tmp_path), rank
        found(supervisor, rank, world=4)
        asyncio.run(supervisor._note_progress())
    assert "training at step 7, 4 ranks on n1,n2" in told(tmp_path)


def test_a_job_whose_ranks_are_never_all_found_is_told_of_all_the_same(tmp_path: Path) -> None:
    """After ten seconds, with those that were found."""
    supervisor = watching(tmp_path)
    found(supervisor, 2, world=4)
    supervisor.present.began_at_s -= 11
    asyncio.run(supervisor._note_progress())
    assert "training at step 7, 1 of 4 ranks on n2" in told(tmp_path)
