"""Runs the test step: one srun, one agent on each node; stdin and stdout are the channel. Leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import math
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import slurm_robust
from slurm_robust.slurm.process import scrubbed
from slurm_robust.stoptime import node_agent

_BOOTSTRAP = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from slurm_robust.stoptime.node_agent import main; sys.exit(main(sys.argv[1:]))"
)
_STREAM_LIMIT = 1 << 20
_CONTAINERS = ("PYXIS_", "ENROOT_", "APPTAINER_", "SINGULARITY_", "_SLURM_SPANK_")
_WORLD = ("MASTER_", "TORCHELASTIC_", "CUDA_VISIBLE_DEVICES", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
"""A surrounding job's own ranks and devices: Slurm sets the step's devices itself."""
_SECOND_STORE = "TORCH_DISTRIBUTED_USE_TORCHCOMMS"
"""With this variable PyTorch opens a second connection to a test's store, which accepts none after its ranks came."""
_END_S = 6.0
"""Time for the agents to end their processes after their stdin has ended: two signals of two seconds."""
_TERM_S = 5.0
_KILLED_S = 3.0
_KEPT_LINES = 20
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class StepTarget:
    """The place where the test runs.

    Attributes:
        job_id: The job in whose allocation it runs, or None for an allocation of its own.
        rank_python: The Python that has PyTorch.
        gres: For an allocation of its own: the GRES to ask for on each node, `gpu:8`; empty for none.
        reservation: For an allocation of its own: the reservation that the nodes are in, or empty.
        admission: For an allocation of its own: srun's options for account, QOS and partition.
    """

    nodes: tuple[str, ...]
    job_id: int | None = None
    rank_python: str = sys.executable
    gres: str = ""
    reservation: str = ""
    admission: tuple[str, ...] = ()


def environment(base: dict[str, str]) -> dict[str, str]:
    """Return the tasks' environment, with NCCL's variables, but without a surrounding job's steps, containers, ranks.

    Code that looks for the job's ranks on a node (captures of stacks, GPU holders) skips processes with SROBUST_WATCH.
    """
    kept = {
        key: value
        for key, value in scrubbed(base).items()
        if not key.startswith((*_CONTAINERS, *_WORLD, _SECOND_STORE))
    }
    return {**kept, "SROBUST_WATCH": "1"}


def ending_with_parent() -> Callable[[], None]:
    """Return a function for an srun to call as it starts: Linux then ends srun when this process dies in any way."""
    libc, parent = ctypes.CDLL(None), os.getpid()

    def begin() -> None:
        # On SIGTERM srun ends its step, or leaves the queue; killed outright, it would leave the step running.
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)

    return begin


def argv(target: StepTarget, *, wait_s: float, limit_s: float) -> list[str]:
    """Return the command line of the step.

    Args:
        target: The place where the step runs.
        wait_s: How long an allocation of its own is waited for.
        limit_s: How long the test may take.
    """
    count = len(target.nodes)
    if target.job_id is not None:
        where = ["--overlap", f"--jobid={target.job_id}"]
    else:
        minutes = math.ceil(limit_s / 60) + 1
        where = ["--exclusive", f"--immediate={math.ceil(wait_s)}", f"--time={minutes}", *target.admission]
        where += [f"--gres={target.gres}"] if target.gres else []
        where += [f"--reservation={target.reservation}"] if target.reservation else []
    return [
        "srun",
        *where,
        f"--nodelist={','.join(target.nodes)}",
        f"--nodes={count}",
        f"--ntasks={count}",
        "--ntasks-per-node=1",
        "--mem=0",
        "--mpi=none",
        "--cpu-bind=none",
        "--no-kill",
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--job-name=srobust-test",
        "--input=all",
        "--output=all",
        "--chdir=/",
        "--",
        sys.executable,
        *("-S", "-s", "-E", "-c", _BOOTSTRAP),
        str(Path(slurm_robust.__file__).resolve().parent.parent),
        target.rank_python,
    ]


class AgentStep:
    """A running test step.

    Attributes:
        ended: Set when its srun has ended.
        errors: The last lines that srun wrote to stderr.
    """

    def __init__(self, target: StepTarget, handler: Callable[[dict[str, Any]], None]) -> None:
        self.target = target
        self.ended = asyncio.Event()
        self.errors: list[str] = []
        self._handler = handler
        self._process: asyncio.subprocess.Process | None = None
        self._readers: list[asyncio.Task[None]] = []

    async def start(self, *, wait_s: float, limit_s: float) -> None:
        """Start srun.

        Raises:
            OSError: there is no srun, or it cannot be executed.
        """
        self._process = await asyncio.create_subprocess_exec(
            *argv(self.target, wait_s=wait_s, limit_s=limit_s),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment(dict(os.environ)),
            limit=_STREAM_LIMIT,
            # A session of its own: Ctrl-C is for this process, which ends the step in order.
            start_new_session=True,
            # Killed outright we cannot do that, and an srun that still waits for its nodes reads no stdin.
            preexec_fn=ending_with_parent(),
        )
        self._readers = [asyncio.create_task(self._read_messages()), asyncio.create_task(self._read_errors())]

    def send(self, order: dict[str, Any]) -> None:
        """Send an order to every agent."""
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError, RuntimeError):
            self._process.stdin.write(node_agent.packed(order).encode() + b"\n")

    async def end(self) -> bool:
        """End the step: let the agents end by themselves, else end srun by signals. Return when srun has ended.

        Returns:
            True if the agents ended by themselves; else Slurm may still count the step as running.
        """
        process = self._process
        if process is None:
            return True
        assert process.stdin is not None
        with contextlib.suppress(ConnectionError, RuntimeError):
            process.stdin.close()
        for action, wait_s in ((None, _END_S), (process.terminate, _TERM_S), (process.kill, _KILLED_S)):
            if process.returncode is None and action is not None:
                with contextlib.suppress(ProcessLookupError):
                    action()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(process.wait(), wait_s)
                break
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)
        return action is None

    async def _read_messages(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        while line := await _line(self._process.stdout):
            _, mark, body = line.decode("utf-8", "replace").partition(node_agent.MARK)
            with contextlib.suppress(ValueError):
                found = json.loads(body) if mark else None
                if isinstance(found, dict) and isinstance(found.get("node"), str):
                    self._handler(found)
        self.ended.set()
        self._handler({"t": "ended", "node": ""})

    async def _read_errors(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        while line := await _line(self._process.stderr):
            if text := line.decode("utf-8", "replace").strip():
                self.errors = [*self.errors[1 - _KEPT_LINES :], text[:300]]


async def _line(stream: asyncio.StreamReader) -> bytes:
    try:
        return await stream.readline()
    except ValueError:  # a foreign line longer than the limit: the reader has dropped it
        return b"\n"
