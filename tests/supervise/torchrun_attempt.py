"""An attempt of job 5, step 0: two tasks of two ranks each (torchrun) on n1 and n2, with an output file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from supervised import FakeClock

from slurm_robust.supervise.agent.messages import from_agent
from slurm_robust.supervise.watch.attempt_state import AttemptSources, AttemptState


def attempt_of(path: Path, clock: FakeClock, name: str = "5.0.9.1", **sources: Any) -> AttemptState:
    """An attempt that writes into this file, which is empty so far."""
    path.touch()
    return AttemptState(name, AttemptSources(5, ("n1", "n2"), (path,), **sources), clock)


def with_ranks(attempt: AttemptState) -> AttemptState:
    """The same, once its agents have found all ranks."""
    for rank in range(4):
        finds(attempt, rank)
    return attempt


def finds(attempt: AttemptState, rank: int) -> None:
    """An agent has found this rank."""
    found = {"t": "rank", "n": f"n{rank // 2 + 1}", "rank": rank, "pid": 100 + rank, "task": rank // 2}
    attempt.fleet.feed(from_agent({**found, "step_id": "0", "world": 4, "nodes": 2, "at": 1.0}), 1.0)


def prints(attempt: AttemptState, line: str) -> None:
    """The job's output file grows by this line."""
    with attempt.sources.paths[0].open("a") as f:
        f.write(line + "\n")
    attempt.read_outputs()
    attempt.confirm_exits()


def loses(attempt: AttemptState, rank: int) -> None:
    """An agent no longer finds this rank."""
    attempt.fleet.feed(
        from_agent({"t": "gone", "n": f"n{rank // 2 + 1}", "rank": rank, "pid": 100 + rank, "at": 2.0}), 2.0
    )
    attempt.confirm_exits()
