"""Where a process of scripts/kill_saves.py is killed: what its ranks, persisters and agents share. Imports no torch.

Each of them writes its pid into the round's folder as `pid-NODE-ROLE-PID`, so that whoever comes to the case's point
can kill itself, its node's persister, its node's agent, or all of its node at that very instant.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

VARIABLE = "KILL_SAVES"
"""Holds `Point` as JSON."""
PERSISTER = f"""
import os, sys
sys.path[:0] = [sys.argv.pop(1), {str(Path(__file__).parent)!r}]
import kill_point
kill_point.persister()
"""
"""What takes the place of the bootstrap that starts a persister; its first argument is the package's root."""
ORPHANED_S = 1.0
TRAINER, WRITER = "trainer", "writer"


def environment(folder: Path, side: str, point: str, nth: int, victim: str) -> str:
    """What the processes of a round are told: on which side of a save the point is, and who dies there."""
    return json.dumps({"folder": str(folder), "side": side, "point": point, "nth": nth, "victim": victim})


def node() -> str:
    """The node that this process believes to run on."""
    return os.environ["SLURMD_NODENAME"]


def here(role: str) -> None:
    """Be known to whoever kills."""
    folder = Path(json.loads(os.environ[VARIABLE])["folder"])
    (folder / f"pid-{node()}-{role}-{os.getpid()}").touch()


def pids(folder: Path, role: str = "*", on: str = "*") -> list[int]:
    """Of those that are known."""
    return [int(path.name.rpartition("-")[2]) for path in folder.glob(f"pid-{on}-{role}-*")]


def watch(side: str, role: str) -> Callable[[str], None]:
    """What stands in for `reached` on this side of a save in a process of this role."""
    case: dict[str, Any] = json.loads(os.environ[VARIABLE])
    folder, seen = Path(case["folder"]), 0

    def reached(point: str) -> None:
        nonlocal seen
        if side != case["side"] or point != case["point"]:
            return
        seen += 1
        if seen == case["nth"]:
            with contextlib.suppress(FileExistsError):
                (folder / "struck").touch(exist_ok=False)  # whoever comes after is spared
                _strike(folder, case["victim"], role)

    return reached


def _strike(folder: Path, victim: str, role: str) -> None:
    killed = pids(folder, "*" if victim == "node" else victim, node())
    for pid in killed:
        if pid != os.getpid():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    if victim in ("node", role):
        os.kill(os.getpid(), signal.SIGKILL)


def watch_writing(role: str) -> None:
    """Have this process come by all points of writing, sealing and pruning, and by each flush."""
    from slurm_robust.checkpoint import pruning  # noqa: PLC0415 (a persister has its path only now)
    from slurm_robust.checkpoint.saving import writing  # noqa: PLC0415

    reached, flush = watch(WRITER, role), os.fsync

    def fsync(fd: int) -> None:
        reached("flush")
        flush(fd)

    os.fsync = fsync  # type: ignore[assignment]
    writing.reached = reached
    pruning._reached = lambda point, _: reached(point)


def persister() -> None:
    """Be a persister."""
    from slurm_robust.checkpoint.saving import persister as real  # noqa: PLC0415 (as above)

    here("persister")
    watch_writing("persister")
    real.ORPHANED_TIMEOUT_S = ORPHANED_S
    real.main(sys.argv[1:])
