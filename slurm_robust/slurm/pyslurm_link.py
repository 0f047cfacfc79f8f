"""Connects to the process that runs pyslurm: one request, one reply, a deadline."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from typing import IO, Any, TypeVar

import msgspec

from slurm_robust.config.site import SlurmConfig
from slurm_robust.slurm import errors, process
from slurm_robust.slurm.pyslurm_messages import Broken, Reply, Request, Unable

T = TypeVar("T")


class WorkerDiedError(errors.SlurmError):
    """pyslurm's process ended in a call, and Slurm's words do not mention it: the change may have been made."""


class _Worker:
    """The process and its three pipes."""

    def __init__(self, env: dict[str, str]) -> None:
        self.stderr = tempfile.TemporaryFile()  # noqa: SIM115 (closed by end)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "slurm_robust.slurm.pyslurm_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.stderr,
            env=env,
            cwd="/",
            start_new_session=True,
        )

    def stderr_end(self) -> str:
        """Return the end of the text that the worker wrote to stderr."""
        self.stderr.seek(0)
        return self.stderr.read()[-400:].decode("utf-8", "replace")

    def end(self) -> None:
        """Kill the worker and all processes that it started, and close the pipes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for pipe in (self.process.stdin, self.process.stdout, self.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self.process.wait()


class PyslurmLink:
    """The worker process, started when needed and ended past a deadline. Calls from several threads take turns."""

    def __init__(self, config: SlurmConfig) -> None:
        self._config = config
        self._turn = threading.Lock()
        self._worker: _Worker | None = None
        self._at_loss: weakref.finalize[[], PyslurmLink] | None = None

    def ask(self, kind: type[T], call: str, what: str, *, within_s: float | None = None, **args: Any) -> T:
        """Send one request, and return the reply that comes within the configured time or `within_s`.

        Raises:
            SlurmError: what went wrong, or the deadline.
            Unable: this pyslurm cannot do the call, or (`Broken`) failed in it.
        """
        limit_s = within_s or self._config.timeout_s
        deadline = time.monotonic() + limit_s
        if not self._turn.acquire(timeout=limit_s):
            raise self._late(what, limit_s)
        try:
            reply = self._exchange(msgspec.json.encode(Request(call, what, args)) + b"\n", what, deadline, limit_s)
        finally:
            self._turn.release()
        if reply.kind in (Unable.__name__, Broken.__name__):
            raise (Broken if reply.kind == Broken.__name__ else Unable)(reply.text)
        if reply.kind:
            raise getattr(errors, reply.kind)(reply.what, reply.text)
        return msgspec.json.decode(reply.value, type=kind)

    def close(self) -> None:
        """End the worker."""
        with self._turn:
            self._end()

    def _late(self, what: str, limit_s: float) -> errors.SlurmTimeoutError:
        return errors.SlurmTimeoutError(
            f"{what}: pyslurm did not return within {limit_s:g} s; check slurmctld: scontrol ping"
        )

    def _exchange(self, line: bytes, what: str, deadline: float, limit_s: float) -> Reply:
        child = (self._worker or self._start()).process
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            child.stdin.write(line)
            child.stdin.flush()
            reply = self._line(child.stdout, what, deadline, limit_s)
        except BrokenPipeError:
            raise self._died(what) from None
        except BaseException:
            # A late reply would be taken for that of the next request.
            self._end()
            raise
        return msgspec.json.decode(reply, type=Reply)

    def _line(self, stdout: IO[bytes], what: str, deadline: float, limit_s: float) -> bytes:
        line = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise self._late(what, limit_s)
                piece = os.read(stdout.fileno(), 1 << 20)
                if not piece:
                    raise self._died(what)
                line += piece
        return bytes(line)

    def _died(self, what: str) -> errors.SlurmError:
        text = self._worker.stderr_end() if self._worker else ""
        self._end()
        known = errors.from_text(what, text)
        return known if isinstance(known, errors.SlurmUnavailableError) else WorkerDiedError(what, known.text)

    def _start(self) -> _Worker:
        env = process.scrubbed(os.environ, self._config.conf) | {
            "LC_ALL": "C",
            # The worker runs in / and finds the same packages as this process.
            "PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in sys.path if path),  # noqa: PTH100
        }
        self._worker = _Worker(env)
        self._at_loss = weakref.finalize(self, self._worker.end)
        return self._worker

    def _end(self) -> None:
        self._worker = None
        if self._at_loss is not None:
            self._at_loss()
