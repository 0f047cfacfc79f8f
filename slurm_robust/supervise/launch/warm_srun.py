"""Starts the srun of a warm step, which replaces the user's own srun once the step is released.

Its standard error is a pipe until then: messages about a failed warm step do not belong into the user's output.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Collection, Mapping

from slurm_robust.supervise.launch import messages, srun_process

_KEPT_BYTES = 4096
_RELAY_S = 1.0
_KILLED_S = 0.5


class WarmPlace:
    """The place for one srun of a warm step."""

    def __init__(self) -> None:
        self._srun: _WarmSrun | None = None
        self._relay: subprocess.Popen[bytes] | None = None

    def start(self, order: messages.StartWarm, env: Mapping[str, str], mask: Collection[signal.Signals | int]) -> str:
        """End the last warm srun and start this one, with this environment and mask; return why there is none."""
        self.end()
        try:
            self._srun = _WarmSrun(order, env, mask)
        except OSError as error:
            return f"{order.argv[0]}: {error.strerror}"
        return ""

    def adopt(self, attempt: str) -> subprocess.Popen[bytes] | None:
        """Return the srun that becomes this attempt, with messages passed on; None if it has ended or is another's."""
        if self._srun is None or self._srun.attempt != attempt:
            return None
        warm, self._srun = self._srun, None
        self._relay = warm.pass_messages_on()
        return warm.process

    def finish_messages(self) -> None:
        """Wait until the last messages of an adopted srun that has ended are passed on."""
        if self._relay is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._relay.wait(_RELAY_S)
            self._relay = None

    def ended(self) -> tuple[str, int, str] | None:
        """Return attempt, exit code and last messages of an srun that has ended by itself, once; else None."""
        ended = self._srun.ended() if self._srun is not None else None
        if self._srun is None or ended is None:
            return None
        attempt, self._srun = self._srun.attempt, None
        return attempt, *ended

    def end(self, attempt: str = "") -> None:
        """Kill the srun that would become this attempt, or any; without a message, since the caller knows."""
        if self._srun is not None and attempt in ("", self._srun.attempt):
            self._srun.kill()
            self._srun = None


class _WarmSrun:
    def __init__(
        self, order: messages.StartWarm, env: Mapping[str, str], mask: Collection[signal.Signals | int]
    ) -> None:
        self.attempt = order.attempt
        self._errors, write_end = os.pipe()
        try:
            self.process = srun_process.start(order.argv, env, mask, stderr=write_end)
        except OSError:
            os.close(self._errors)
            raise
        finally:
            os.close(write_end)

    def ended(self) -> tuple[int, str] | None:
        """Return the exit code, as a shell gives it, and what srun wrote; None while srun runs."""
        code = self.process.poll()
        if code is None:
            return None
        os.set_blocking(self._errors, False)
        text = b""
        with contextlib.suppress(OSError):
            text = os.read(self._errors, _KEPT_BYTES)
        os.close(self._errors)
        lines = [line for line in text.decode("utf-8", "replace").splitlines() if line.strip()]
        return srun_process.exit_code(code), "; ".join(lines[-2:])[:300]

    def pass_messages_on(self) -> subprocess.Popen[bytes] | None:
        """Return the process that copies srun's messages from now on: srun may outlive the launcher."""
        try:
            relay = subprocess.Popen(["cat"], stdin=self._errors, stdout=2, start_new_session=True)
        except OSError:
            return None  # the pipe stays open: srun's messages are lost, and srun is not
        os.close(self._errors)
        return relay

    def kill(self) -> None:
        """Kill srun; its step ends with it."""
        with contextlib.suppress(OSError):
            self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_KILLED_S)
        os.close(self._errors)
