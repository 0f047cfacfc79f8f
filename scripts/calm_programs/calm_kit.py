"""What the programs of `scripts/calm` share: their registry, scaled times, and a training to be strange in.

A program is a function whose docstring says what it does. Each task of its job runs it, as
`python scripts/calm_programs NAME`. Standard library only; torch is loaded by those that train with it.
"""

from __future__ import annotations

import atexit
import os
import random
import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

SCALE: Final = float(os.environ.get("CALM_SCALE", "1"))
RANK: Final = int(os.environ.get("CALM_RANK", os.environ.get("SLURM_PROCID", "0")))
SIZE: Final = int(os.environ.get("CALM_SIZE", os.environ.get("SLURM_NTASKS", "1")))
DIR: Final = Path(os.environ.get("CALM_DIR", "."))
LAUNCH: Final = os.environ.get("CALM_LAUNCH") or "-".join(
    os.environ.get(f"SLURM_{name}", "0") for name in ("JOB_ID", "RESTART_COUNT", "STEP_ID")
)
"""Differs for each start of a step: names that ranks meet under are never those of an earlier start."""
BIN: Final = Path(os.environ.get("CALM_BIN", "."))
"""Folder of the compiled C programs."""
_STEP_S = 0.4
_steps_made = 0

Meet = Callable[[], None]


@dataclass(frozen=True)
class Program:
    """A healthy program that does something strange.

    Attributes:
        name: As in `scripts/calm --only NAME`.
        kind: The group that it belongs to.
        what: What it does, for the table.
        pause_s: The longest time without a step, at scale 1; 0 if it is not about a pause.
        body: Lines of the batch script: `$launch` starts a step, `$me NAME` is this program.
        tasks: Tasks of the job.
        nodes: Nodes of the job.
        sbatch: More options of sbatch.
        code: Exit code of the job.
        noise: Patterns of output lines that differ from run to run.
        missing: What this machine lacks for it, as a sentence; empty if nothing.
        least_scale: It needs at least this time scale.
    """

    name: str
    kind: str
    what: str
    pause_s: float
    body: str
    tasks: int = 2
    nodes: int = 2
    sbatch: Sequence[str] = ()
    code: int = 0
    noise: Sequence[str] = ()
    missing: str = ""
    least_scale: float = 0.0


TRACEBACK: Final = ("^Traceback", "^  File ", "^    ", r"^\w+Error")
"""Noise of ranks that are ended one after the other: those that still run may lose their connection first."""

PROGRAMS: Final[dict[str, Program]] = {}
ENTRIES: Final[dict[str, Callable[[], None]]] = {}


def program(pause_s: float, **more: Any) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register a function as the program of each task; its docstring is the description."""

    def register(function: Callable[[], None]) -> Callable[[], None]:
        name = function.__name__.replace("_", "-")
        what = " ".join((function.__doc__ or "").split())
        kind = function.__module__.removeprefix("calm_").split("_")[0]
        body = more.pop("body", f"$launch $me {name}")
        PROGRAMS[name] = Program(name, kind, what, pause_s, body, **more)
        ENTRIES[name] = function
        return function

    return register


def script(name: str, kind: str, what: str, pause_s: float, body: str, **more: Any) -> None:
    """Register a batch script; `$me NAME` in it may run a function that `entry` has registered."""
    PROGRAMS[name] = Program(name, kind, " ".join(what.split()), pause_s, body, **more)


def entry(function: Callable[[], None]) -> Callable[[], None]:
    """Register a function that a batch script runs by its name."""
    ENTRIES[function.__name__.replace("_", "-")] = function
    return function


def note_start(name: str) -> None:
    """Append a line to the file that counts the starts of all tasks."""
    with (DIR / "starts").open("a") as file:
        file.write(f"{name} rank {RANK}\n")


def seconds(at_scale_1: float) -> float:
    """Return a time in the present scale."""
    return at_scale_1 * SCALE


def nap(at_scale_1: float) -> None:
    """Sleep in the rank's own thread."""
    time.sleep(seconds(at_scale_1))


def until(found: Callable[[], bool]) -> None:
    """Ask again and again, for at most 20 minutes."""
    until_s = time.monotonic() + 1200
    while not found() and time.monotonic() < until_s:
        time.sleep(0.1)


def say(*words: object) -> None:
    """Print a line at once."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def compute(at_scale_1: float) -> None:
    """Compute for a tenth of each tenth of a second: many programs share two processors."""
    until_s = time.monotonic() + seconds(at_scale_1)
    while time.monotonic() < until_s:
        begun_s = time.process_time()
        while time.process_time() - begun_s < 0.01:
            random.random()
        time.sleep(max(0.0, min(0.09, until_s - time.monotonic())))


def train(steps: int, meet: Meet | None = None, show: str = "step {} loss {:.4f}", each_s: float = _STEP_S) -> None:
    """Make some steps: a little work, a meeting of all ranks, and rank 0's line. Steps are counted over all calls."""
    global _steps_made  # noqa: PLW0603 (a program trains in several calls)
    for _ in range(steps):
        compute(each_s)
        if meet:
            meet()
        _steps_made += 1
        if RANK == 0 and show:
            say(show.format(_steps_made, 3 / (_steps_made + 2)))


def amid_training(odd: Callable[[], object], *, on: int = 1, meet: Meet | None = None) -> None:
    """Train; then one rank does something odd while the others wait for it; then train on."""
    meet = meet or by_torch()
    train(40, meet)
    if on == RANK:
        odd()
    train(8, meet)


def by_sockets(name: str = "meet") -> Meet:
    """Connect all ranks to rank 0; the result waits until all have called it."""
    return among(name, range(SIZE))


def among(name: str, ranks: Sequence[int]) -> Meet:
    """Connect some ranks to the first of them; the result waits until all of these have called it."""
    if ranks[0] == RANK:
        server = listening(name)
        peers = [server.accept()[0] for _ in ranks[1:]]
    else:
        peers = [connected(name)]

    def meet() -> None:
        if ranks[0] == RANK:
            for peer in peers:
                receive(peer, 8)
        for peer in peers:
            peer.sendall(struct.pack("d", 1.0))
        if ranks[0] != RANK:
            receive(peers[0], 8)

    return meet


def listening(name: str) -> socket.socket:
    """Listen on a socket file: all nodes are this machine, and a port could be another program's."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(f"{name}.{LAUNCH}")
    server.listen(64)
    return server


def connected(name: str) -> socket.socket:
    """Connect to a socket file; somebody will listen on it within a minute."""
    peer = socket.socket(socket.AF_UNIX)
    for _ in range(600):
        if peer.connect_ex(f"{name}.{LAUNCH}") == 0:
            return peer
        time.sleep(0.1)
    raise TimeoutError(f"nobody listens on {name}: the first rank has not come")


def receive(peer: socket.socket, size: int) -> bytes:
    """Receive so many bytes.

    Raises:
        ConnectionError: the peer has closed the connection.
    """
    data = b""
    while len(data) < size:
        part = peer.recv(size - len(data))
        if not part:
            raise ConnectionError("the other rank has ended")
        data += part
    return data


def by_torch() -> Meet:
    """Join all ranks in a gloo group; the result is an all-reduce."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", rank=RANK, world_size=SIZE, init_method=f"file://{DIR}/gloo.{LAUNCH}")
    atexit.register(dist.destroy_process_group)  # else its threads may abort the exit
    gradient = torch.zeros(64)

    def meet() -> None:
        dist.all_reduce(gradient)

    return meet
