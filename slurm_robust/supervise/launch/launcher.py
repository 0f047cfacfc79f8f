"""The outer process of `srobust run`: starts the user's `srun`, waits for it, asks the supervisor what follows.

It is small so that it has no reason to fail. The supervisor is another process: when it dies it is started anew, and
when it cannot be had, the user's srun runs as if nothing of ours were there. stdin, stdout and stderr are inherited;
signals are handed on.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from slurm_robust.supervise.recover import waiting_shell

_FIRST_WORD_S = 20.0
"""How long the supervisor may take to say how to launch; then the user's srun starts as typed."""
_TICK_S = 60.0
_MAX_SILENT_TICKS = 10
"""A supervisor says every half minute that it lives; after ten quiet minutes it is killed, and another one started.

Counted, not timed: while a job is suspended, neither it nor we have a turn."""
_MAX_RESPAWNS = 5
_RESPAWN_WINDOW_S = 60.0
_WAKE = signal.SIGRTMIN + 1
_HANDED_ON = {
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGCONT,
}
_ENDING = {signal.SIGTERM, signal.SIGHUP, signal.SIGINT}
_TERMINAL = {signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP}
"""A terminal sends these to the whole group, srun included: handing those on would deliver them twice."""


def sent_by_process(info: signal.struct_siginfo) -> bool:
    """True where a process sent a signal, as kill(1) does; the kernel does for a terminal's keys."""
    return info.si_code <= 0


def sent_by_slurm(sender_pid: int) -> bool:
    """True where a slurmstepd sent a signal: it signals srun itself, unless we are its direct child."""
    try:
        with open(f"/proc/{sender_pid}/comm", encoding="utf-8") as f:  # noqa: PTH123 (one line, no object)
            return f.read().startswith("slurmstepd")
    except OSError:
        return False


class Launcher:
    """Runs a command under supervision.

    Args:
        plain: The argument list to fall back to: the user's srun.
        supervisor: The argument list of the supervisor process; `{fd}` in it is replaced by the channel's number.
    """

    def __init__(self, plain: Sequence[str], supervisor: Sequence[str]) -> None:
        self._plain = list(plain)
        self._supervisor_argv = list(supervisor)
        self._events: queue.Queue[dict[str, Any]] = queue.Queue()
        self._channel: socket.socket | None = None
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._spawned_at: list[float] = []
        self._silent_ticks = 0
        self._srun: subprocess.Popen[bytes] | None = None
        self._attempt = ""
        self._evicted: list[str] = []
        self._parent = os.getppid()
        self._old_mask: set[signal.Signals | int] = set()
        # A shell starts background jobs deaf to the terminal, nohup to its end. Blocked signals come all the same.
        self._deaf_to = {number for number in _ENDING if signal.getsignal(number) == signal.SIG_IGN}

    # -- the supervisor ----------------------------------------------------------------------------------------

    def _spawn_supervisor(self) -> bool:
        now = time.monotonic()
        self._spawned_at = [t for t in self._spawned_at if now - t < _RESPAWN_WINDOW_S]
        if len(self._spawned_at) >= _MAX_RESPAWNS:
            return False
        self._spawned_at.append(now)
        ours, theirs = socket.socketpair()
        argv = [word.replace("{fd}", str(theirs.fileno())) for word in self._supervisor_argv]
        try:
            self._supervisor = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                preexec_fn=self._child_of_ours,  # noqa: PLW1509 (masks must be undone in the child; see _reader)
            )
        except OSError as error:
            sys.stderr.write(f"srobust: the supervisor cannot be started: {error}; running without it\n")
            ours.close()
            return False
        finally:
            theirs.close()
        self._channel = ours
        threading.Thread(target=self._reader, args=(ours, self._supervisor.pid), daemon=True).start()
        return True

    def _child_of_ours(self) -> None:
        os.setpgid(0, 0)  # a Ctrl-C is for the training
        signal.pthread_sigmask(signal.SIG_SETMASK, self._old_mask)

    def _reader(self, channel: socket.socket, pid: int) -> None:
        with contextlib.suppress(OSError, ValueError), channel.makefile("r", encoding="utf-8") as lines:
            for line in lines:
                self._events.put(json.loads(line))
                os.kill(os.getpid(), _WAKE)
        self._events.put({"do": "supervisor-gone", "pid": pid})
        os.kill(os.getpid(), _WAKE)

    def _say(self, **message: Any) -> None:
        if self._channel is not None:
            with contextlib.suppress(OSError):
                self._channel.sendall(json.dumps(message).encode() + b"\n")

    # -- srun --------------------------------------------------------------------------------------------------

    def _launch(self, argv: Sequence[str], env: Mapping[str, str], unset: Sequence[str], attempt: str) -> int | None:
        """Start srun; an exit code where it cannot be started."""
        full = {k: v for k, v in os.environ.items() if k not in unset}
        full.update(env)
        self._attempt = attempt
        try:
            self._srun = subprocess.Popen(
                list(argv),
                env=full,
                preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, self._old_mask) and None,  # noqa: PLW1509
            )
        except OSError as error:
            sys.stderr.write(f"srobust: {argv[0]}: {error.strerror}; is Slurm installed on this node?\n")
            return 127 if isinstance(error, FileNotFoundError) else 126
        self._say(ev="started", attempt=attempt, pid=self._srun.pid)
        return None

    def _reap(self) -> int | None:
        """Srun's exit code as a shell would give it, where it has ended."""
        if self._srun is None or self._srun.poll() is None:
            return None
        code = self._srun.returncode
        self._srun = None
        return code if code >= 0 else 128 - code

    # -- the loop ----------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Run until there is an exit code."""
        watched = {signal.SIGCHLD, _WAKE} | _HANDED_ON | _TERMINAL
        self._old_mask = set(signal.pthread_sigmask(signal.SIG_BLOCK, watched))
        supervised = self._spawn_supervisor()
        self._say(ev="ready")
        # Without a supervisor there is no first word to wait for.
        first_word_by = time.monotonic() + (_FIRST_WORD_S if supervised else 0.0)
        ended: int | None = None
        while True:
            waiting_first = self._attempt == "" and self._srun is None and ended is None
            timeout_s = max(0.0, first_word_by - time.monotonic()) if waiting_first else _TICK_S
            info = signal.sigtimedwait(watched, timeout_s)
            result = self._signalled(info) if info is not None else None
            if info is None and not waiting_first:
                self._end_frozen_supervisor()
            if info is None and waiting_first:
                if supervised:
                    sys.stderr.write(f"srobust: no word from the supervisor in {_FIRST_WORD_S:g} s; running without\n")
                supervised = False
                result = self._launch(self._plain, {}, [], "plain")
            if result is not None:
                return result
            code = self._reap()
            if code is not None:
                ended = code
                if not supervised or self._channel is None:
                    return code
                self._say(ev="ended", code=code, attempt=self._attempt)
            while not self._events.empty():
                self._silent_ticks = 0
                result = self._obey(self._events.get(), ended)
                if result is not None:
                    return result
                if self._srun is not None:
                    ended = None
                supervised = self._channel is not None

    def _signalled(self, info: signal.struct_siginfo) -> int | None:
        """A signal arrived; an exit code where it ends us."""
        if self._srun is None and info.si_signo in _ENDING - self._deaf_to:
            # Nobody to hand it to: before the launch there is none, and afterwards the job ends, or is requeued under
            # us; under proctrack/linuxproc nothing else would end us.
            self._end_supervisor()
            return 128 + info.si_signo
        self._hand_on(info)
        return None

    def _hand_on(self, info: signal.struct_siginfo) -> None:
        number = signal.Signals(info.si_signo) if info.si_signo < signal.SIGRTMIN else None
        if self._srun is None or not (number in _HANDED_ON or (number in _TERMINAL and sent_by_process(info))):
            return
        if sent_by_slurm(info.si_pid) and os.getppid() != info.si_pid:
            return
        with contextlib.suppress(ProcessLookupError):
            self._srun.send_signal(number)

    def _obey(self, message: Mapping[str, Any], ended: int | None) -> int | None:
        """Do what the supervisor says; an exit code where that is the end."""
        order = message.get("do")
        if order == "launch" and self._srun is None:
            self._evicted = message.get("evicted", [])
            return self._launch(message["argv"], message["env"], message["unset"], message["attempt"])
        if order == "kill" and self._srun is not None:
            self._srun.kill()
        elif order in ("exit", "part"):
            return self._exit(message["code"]) if order == "exit" else self._part(message["argv"], message["nap_s"])
        elif order == "supervisor-gone" and self._supervisor is not None and message["pid"] == self._supervisor.pid:
            self._supervisor.wait()
            self._channel = None
            if os.getppid() != self._parent:
                # The script is gone: its job has ended or runs anew, and a supervisor of ours would speak for that one.
                return 128 + signal.SIGTERM
            if self._spawn_supervisor():
                if self._srun is not None:
                    self._say(ev="started", attempt=self._attempt, pid=self._srun.pid, evicted=self._evicted)
                elif ended is not None:
                    self._say(ev="ended", code=ended, attempt=self._attempt, evicted=self._evicted)
                else:
                    self._say(ev="ready")
                return None
            if self._srun is None:
                return ended if ended is not None else self._launch(self._plain, {}, [], "plain")
        return None

    def _exit(self, code: int) -> int:
        self._end_supervisor()
        return int(code)

    def _part(self, argv: Sequence[str], nap_s: float) -> int:
        """Only a requeue is waited for: give up everything but our pid. Returns where there is no shell to become.

        The supervisor says its last words, and ends itself.
        """
        if waiting_shell.is_batch_script(self._parent):
            waiting_shell.die_with_parent(self._parent)
        # There is no srun to hand the users' own to; our own may be pending, and would end us.
        for number in (signal.SIGUSR1, signal.SIGUSR2, _WAKE):
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._old_mask)
        return waiting_shell.nap(nap_s, argv)

    def _end_frozen_supervisor(self) -> None:
        """Kill a supervisor that has said nothing for so long; its end is then handled like any other."""
        self._silent_ticks += 1
        if self._silent_ticks >= _MAX_SILENT_TICKS and self._channel is not None and self._supervisor is not None:
            sys.stderr.write(f"srobust: no sign of the supervisor in {_TICK_S * _MAX_SILENT_TICKS:g} s: started anew\n")
            self._silent_ticks = 0
            self._supervisor.kill()

    def _end_supervisor(self) -> None:
        if self._channel is not None:
            with contextlib.suppress(OSError):
                self._channel.shutdown(socket.SHUT_RDWR)
        if self._supervisor is not None:
            try:
                self._supervisor.wait(5.0)
            except subprocess.TimeoutExpired:
                self._supervisor.kill()
