"""Starts the watch step: `srun --overlap`, one agent on each node, with its stdin and stdout as the channel.

Killing the watch step does not harm ranks. If it ends too early, it is started again after a pause that grows.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import slurm_robust
from slurm_robust.supervise.agent import messages, wire
from slurm_robust.supervise.agent.node_ring import NO_FILES, NodeFiles
from slurm_robust.supervise.clock import CLOCK, Clock

_BOOTSTRAP = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from slurm_robust.supervise.agent.main import main; main(sys.argv[2:])"
)
_STREAM_LIMIT = 1 << 20
_STARTING_S = 10.0
"""From srun's start to the agents': a fault in between does not belong to an earlier job."""
_RETRY_S = (0.5, 1.0, 2.0, 5.0, 15.0)
_LOG_DELAY_S = 2.0
"""Slurm ends the step a moment before the srun of an allocation ends; a job's end must not cause a line."""
_HEALTHY_S = 30.0
"""If a watch step has lived this long, the next one starts after the shortest pause."""
_END_S = 1.0
"""For agents to end by themselves: that takes a tenth of a second, and never happens on a frozen node."""

_FLUSH_S = 65.0
"""A little more than an agent gives itself (`persisters.FLUSH_S`)."""
_POLL_S = 0.05

_KILLED_S = 3.0
"""Time for a killed srun to end: an srun that hangs in a file system survives SIGKILL, and is left behind."""

_CONTAINER_PREFIXES = ("PYXIS_", "ENROOT_", "APPTAINER_", "SINGULARITY_", "SLURM_SPANK_", "_SLURM_SPANK_")
_OF_ROOT_KEPT = ("PATH", "LANG", "LC_ALL", "TZ", "SLURM_CONF", "SLURM_CLUSTER_NAME")
_SRUN_INPUTS_KEPT = {"SLURM_CONF", "SLURM_JOB_ID", "SLURM_CLUSTER_NAME"}


def py_spy_path() -> str:
    """Return the path of py-spy: beside this Python or on PATH; `py-spy` if not installed: captures report that."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy") or "py-spy"


def environment(base: dict[str, str]) -> dict[str, str]:
    """Return the environment of the watch step's srun.

    srun takes options from SLURM_*, SRUN_* and SBATCH_* variables (--exclusive, --gpus, a container, …): options of the
    job must not reach the watch step. Without the containers' variables the agent runs on the host.
    """
    env = {
        k: v
        for k, v in base.items()
        if not k.startswith(("SLURM_", "SRUN_", "SBATCH_", *_CONTAINER_PREFIXES)) or k in _SRUN_INPUTS_KEPT
    }
    env["SROBUST_WATCH"] = "1"
    env.pop("SROBUST_ATTEMPT", None)
    return env


def as_account(account: pwd.struct_passwd, base: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments that start a child as this account, with only the paths of root's environment.

    The child has to get a session of its own: the account may trace it, and could otherwise type into root's terminal.
    """
    env = {k: base[k] for k in _OF_ROOT_KEPT if k in base}
    env |= {"HOME": account.pw_dir, "USER": account.pw_name, "LOGNAME": account.pw_name}
    groups = os.getgrouplist(account.pw_name, account.pw_gid)
    who = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": groups}
    return {**who, "env": environment(env), "cwd": "/"}


def argv(job_id: int, nodes: Sequence[str], attempt: str, tick_s: float, *more: str) -> list[str]:
    """Return the command line of a watch step on `nodes`; `more` are further arguments of `agent.main.main`."""
    root = str(Path(slurm_robust.__file__).resolve().parent.parent)
    return [
        "srun",
        "--overlap",
        f"--jobid={job_id}",
        f"--nodelist={','.join(nodes)}",
        f"--nodes={len(nodes)}",
        f"--ntasks={len(nodes)}",
        "--ntasks-per-node=1",
        "--gres=none",
        "--mem=0",
        "--mpi=none",
        "--cpu-bind=none",
        "--no-kill",
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--job-name=srobust-watch",
        "--input=all",
        "--output=all",
        "--chdir=/",
        "--",
        sys.executable,
        "-S",
        "-s",
        "-E",
        "-c",
        _BOOTSTRAP,
        root,
        str(job_id),
        attempt,
        f"{tick_s:g}",
        py_spy_path(),
        *more,
    ]


class WatchStep:
    """Keeps a watch step alive on a set of nodes, and carries messages.

    Attributes:
        account: The account that runs srun, for root in another user's job; None for the account of this process.
        watched_since_s: Since when its nodes are watched, on the monotonic clock; None before its first agents start.
    """

    def __init__(
        self,
        job_id: int,
        tick_s: float,
        handler: messages.Handler,
        log: Callable[[str], None],
        *,
        clock: Clock = CLOCK,
        files: NodeFiles = NO_FILES,
    ) -> None:
        self.watched_since_s: float | None = None
        self._files = files
        self.job_id = job_id
        self.tick_s = tick_s
        self.account: pwd.struct_passwd | None = None
        self.nodes: tuple[str, ...] = ()
        self.attempt = ""
        self.decoder = wire.Decoder()
        self.starts = 0
        self._clock = clock
        self._handler = handler
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._number = 0
        self._wanted = False
        self._stderr_tail: list[str] = []
        self._delayed_lines: list[asyncio.TimerHandle] = []
        self._refused = False
        """A message that could not be taken was reported."""
        self._flushing: set[str] = set()
        """Nodes whose agents still write checkpoints before they end."""

    async def start(self, nodes: Sequence[str], attempt: str) -> None:
        """Keep a watch step running on these nodes from now on."""
        await self.stop()
        self.nodes, self.attempt, self._wanted = tuple(nodes), attempt, True
        self._keeper = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        """End the watch step; its agents end with it.

        The input is closed, so that srun ends last: a slurmstepd whose srun is gone tries for two seconds to report the
        agent's exit to it, and the job's own end waits for that.
        """
        self._wanted = False
        while self._delayed_lines:
            self._delayed_lines.pop().cancel()
        keeper, self._keeper = self._keeper, None
        if keeper is None:
            return
        process = self._process
        if process is not None and process.returncode is None:
            assert process.stdin is not None
            process.stdin.close()
            await asyncio.wait({keeper}, timeout=_END_S)
            await self._flushed(keeper)
        keeper.cancel()  # kills what has not ended
        with contextlib.suppress(asyncio.CancelledError):
            await keeper
        if process is not None:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(process.wait(), _KILLED_S)
        self._process = None

    async def _flushed(self, keeper: asyncio.Task[None]) -> None:
        """Wait, with a limit, for agents that still write checkpoints from memory."""
        if keeper.done() or not self._flushing:
            return
        self._log(f"waiting until checkpoints in memory are written on {', '.join(sorted(self._flushing))}")
        until_s = self._clock.monotonic_s() + _FLUSH_S
        while self._flushing and not keeper.done() and self._clock.monotonic_s() < until_s:
            await self._clock.sleep(_POLL_S)
        if self._flushing and not keeper.done():
            self._log(f"checkpoints are not all written after {_FLUSH_S:g} s on {', '.join(sorted(self._flushing))}")
        await asyncio.wait({keeper}, timeout=_END_S)

    def _receive(self, message: messages.FromAgent) -> None:
        if isinstance(message, messages.Flushing):
            self._flushing.add(message.node)
        elif isinstance(message, messages.Flushed):
            self._flushing.discard(message.node)
        try:
            self._handler(message)
        except Exception as error:  # noqa: BLE001 (one message must not end the channel for all nodes)
            if not self._refused:
                self._refused = True
                what = f"a message of {message.node} ({type(message).__name__})"
                self._log(f"{what} could not be taken: {_named(error)}; further ones get no line")

    @property
    def running(self) -> bool:
        """Whether its srun runs."""
        return self._process is not None and self._process.returncode is None

    def send(self, message: messages.ToAgent) -> None:
        """Send a message to every agent; it is lost if no watch step runs, which senders must expect."""
        self._number += 1
        if self._process is None or self._process.stdin is None or self._process.stdin.is_closing():
            return
        lines = wire.encode("supervisor", self._number, messages.encode(message))
        text = "".join(line + "\n" for line in lines)
        with contextlib.suppress(ConnectionError, RuntimeError):
            self._process.stdin.write(text.encode())

    def watch_attempt(self, attempt: str) -> None:
        """Turn the agents to another attempt."""
        self.attempt = attempt
        self.send(messages.WatchAttempt(attempt))

    async def _keep(self) -> None:
        failures = 0
        while self._wanted:
            began_s = self._clock.monotonic_s()
            try:
                code = await self._run_srun()
            except Exception as error:  # noqa: BLE001 (whatever ends it, the nodes have to be watched)
                code, self._stderr_tail = None, [_named(error)]
            if not self._wanted:
                return
            failures = 0 if self._clock.monotonic_s() - began_s > _HEALTHY_S else failures + 1
            pause_s = _RETRY_S[min(max(failures - 1, 0), len(_RETRY_S) - 1)]
            if failures <= len(_RETRY_S):
                self._log_later(code, pause_s, last=failures == len(_RETRY_S))
            await self._clock.sleep(pause_s)

    def _log_later(self, code: int | None, pause_s: float, *, last: bool) -> None:
        errors = "; ".join(self._stderr_tail[-2:])
        then = f"tried again every {pause_s:g} s, without further notes" if last else f"next try in {pause_s:g} s"
        line = f"the watch step ended (exit {code}){': ' + errors if errors else ''}; {then}"
        later = asyncio.get_running_loop().call_later(_LOG_DELAY_S, self._log, line)
        self._delayed_lines = [*self._delayed_lines[-7:], later]

    async def _run_srun(self) -> int | None:
        self._stderr_tail = []
        self._flushing.clear()
        self.starts += 1
        now_s = self._clock.monotonic_s()
        self.watched_since_s = now_s if self.watched_since_s is None else self.watched_since_s
        # Reports of nodes from the time without an agent are news, too.
        look_back_s = now_s - self.watched_since_s + _STARTING_S
        account, base = self.account, dict(os.environ)
        whose = as_account(account, base) if account is not None else {"env": environment(base)}
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                *argv(self.job_id, self.nodes, self.attempt, self.tick_s, f"{look_back_s:.1f}", *self._files),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                **whose,
                limit=_STREAM_LIMIT,
                # Its own group: a Ctrl-C at the user's terminal is for the training, not for the watch step.
                start_new_session=True,
            )
        except OSError as error:
            self._stderr_tail = [f"srun cannot be started: {error}"]
            return None
        assert process.stdout is not None
        assert process.stderr is not None
        drain = asyncio.create_task(self._read_stderr(process.stderr))
        try:
            while line := await self._line(process.stdout):
                raw = self.decoder.feed(line.decode("utf-8", "replace"))
                if raw is not None:
                    self._receive(messages.from_agent(raw))
            return await process.wait()
        finally:
            drain.cancel()
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()

    async def _line(self, stream: asyncio.StreamReader) -> bytes:
        try:
            return await stream.readline()
        except ValueError:  # a foreign line longer than the limit: the reader has dropped it
            self.decoder.skipped += 1
            return b"\n"

    async def _read_stderr(self, stream: asyncio.StreamReader) -> None:
        while line := await self._line(stream):
            text = line.decode("utf-8", "replace").strip()
            if text:
                self._stderr_tail = [*self._stderr_tail[-20:], text[:300]]


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:300]
