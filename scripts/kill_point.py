"""Where a process of scripts/kill_saves.py is killed: what its ranks, persisters and agents share. Imports no torch.

Each of them writes its pid into the round's folder as `pid-NODE-ROLE-PID`, so that whoever comes to the case's point
can kill itself, a node's persister, its agent, its ranks, or all of a node at that very instant.
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

from kill_cases import HERE, OF_SENDER, TRANSFER, WRITER, Case

VARIABLE = "KILL_SAVES"
"""Holds the round's folder and its case as JSON; no case for one where nobody dies."""
PERSISTER = f"""
import os, sys
sys.path[:0] = [sys.argv.pop(1), {str(Path(__file__).parent)!r}]
import kill_point
kill_point.persister()
"""
"""What takes the place of the bootstrap that starts a persister; its first argument is the package's root."""
ORPHANED_S, ORPHANED_IN_TRANSFER_S, ANOTHER_S = 1.0, 4.0, 0.3
"""As the package's, but shorter: a flush waits twice for another's file, and the seal has to wait for longer."""
CHUNK_BYTES = 64 << 10
"""Of a transfer: the largest share comes in many."""


def environment(folder: Path, case: Case | None) -> str:
    """What the processes of a round are told."""
    return json.dumps({"folder": str(folder), "case": case})


def _told() -> tuple[Path, Case | None]:
    told: dict[str, Any] = json.loads(os.environ[VARIABLE])
    return Path(told["folder"]), Case(*told["case"]) if told["case"] else None


def node() -> str:
    """The node that this process believes to run on."""
    return os.environ["SLURMD_NODENAME"]


def here(role: str) -> None:
    """Be known to whoever kills."""
    (_told()[0] / f"pid-{node()}-{role}-{os.getpid()}").touch()


def pids(folder: Path, role: str = "*", on: str = "*") -> list[int]:
    """Of those that are known."""
    return [int(path.name.rpartition("-")[2]) for path in folder.glob(f"pid-{on}-{role}-*")]


def kill(folder: Path, role: str, on: str) -> None:
    """Kill -9 those that are known, but not this process."""
    for pid in pids(folder, role, on):
        if pid != os.getpid():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def struck(folder: Path) -> str:
    """The node on which somebody was killed; empty if nobody was yet."""
    with contextlib.suppress(FileNotFoundError):
        return (folder / "struck").read_text()
    return ""


def watch(sides: tuple[str, ...], role: str) -> Callable[[str], None]:
    """What stands in for `reached` on these sides of a save in a process of this role."""
    folder, case = _told()
    seen = 0

    def reached(point: str) -> None:
        nonlocal seen
        if case is None or case.side not in sides or point != case.point:
            return
        seen += 1
        if seen == case.nth:
            with contextlib.suppress(FileExistsError), (folder / "struck").open("x") as file:
                file.write(_target(case))  # whoever comes after is spared
                file.flush()
                _strike(folder, case.victim, role, _target(case))

    return reached


def _target(case: Case) -> str:
    """The node that the victim is on: a backup goes from each node to the next one around."""
    if case.on == HERE:
        return node()
    step = 1 if case.point in OF_SENDER else -1
    return f"n{(int(node()[1:]) + step) % case.nodes}"


def _strike(folder: Path, victim: str, role: str, target: str) -> None:
    kill(folder, "*" if victim == "node" else victim, target)
    if target == node() and victim in ("node", role):
        os.kill(os.getpid(), signal.SIGKILL)


def watch_writing(role: str) -> None:
    """Have this process come by all points of writing, sealing and pruning, of transfers, and by each flush."""
    from slurm_robust.checkpoint import pruning  # noqa: PLC0415 (a persister has its path only now)
    from slurm_robust.checkpoint.saving.shared import file_writer  # noqa: PLC0415

    reached, flush = watch((WRITER, TRANSFER), role), os.fsync

    def fsync(fd: int) -> None:
        reached("flush")
        flush(fd)

    os.fsync = fsync  # type: ignore[assignment]
    file_writer.reached = reached
    pruning._reached = lambda point, _: reached(point)


def _note_what_is_kept() -> None:
    """Have a persister leave a name for each copy that it has marked as whole: `kept-NODE-PID-RANK-STEP`."""
    from slurm_robust.checkpoint.saving.shared import image  # noqa: PLC0415 (as above)

    folder, commit = _told()[0], image.Image.commit

    def noted(self: image.Image, slot: int, number: int, note: image.Note) -> None:
        commit(self, slot, number, note)
        described = self.described()
        assert described is not None
        (folder / f"kept-{node()}-{os.getpid()}-{described.rank}-{note.step}").touch()

    image.Image.commit = noted  # type: ignore[method-assign, unused-ignore]


def persister() -> None:
    """Be a persister."""
    from slurm_robust.checkpoint.saving.backup import receiver, sender  # noqa: PLC0415 (as above)
    from slurm_robust.checkpoint.saving.persister import main as real  # noqa: PLC0415 (as above)
    from slurm_robust.checkpoint.saving.shared import file_writer  # noqa: PLC0415 (as above)

    here("persister")
    watch_writing("persister")
    _note_what_is_kept()
    case = _told()[1]
    real.ORPHANED_TIMEOUT_S = ORPHANED_IN_TRANSFER_S if case is not None and case.side == TRANSFER else ORPHANED_S
    file_writer.ANOTHER_S = ANOTHER_S
    sender.CHUNK_BYTES = receiver.CHUNK_BYTES = CHUNK_BYTES
    real.main(sys.argv[1:])
