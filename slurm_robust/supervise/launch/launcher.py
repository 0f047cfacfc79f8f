"""The outer process of `srobust run`: starts the user's `srun`, waits for it, and asks the supervisor what to do next.

It is small so that it has little reason to fail. The supervisor is another process: where it dies it is started again,
and where it cannot run, the user's srun runs without it. srun inherits stdin, stdout and stderr; signals are forwarded.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence

from slurm_robust.supervise.agent import procfs
from slurm_robust.supervise.agent.clock import CLOCK, SystemClock
from slurm_robust.supervise.launch import messages
from slurm_robust.supervise.recover import waiting_shell

_FIRST_MESSAGE_S = 20.0
"""How long the supervisor may take to send its first launch; then the user's srun starts as typed."""
_LONGEST_FIRST_MESSAGE_S = 300.0
"""The same, where the supervisor says that it has something to prepare."""
_TICK_S = 60.0
_MAX_SILENT_TICKS = 10
"""A supervisor reports every half minute that it lives; after ten silent minutes it is killed and another one started.

Ticks are counted, not timed: while a job is suspended, neither it nor we run."""
_MAX_RESPAWNS = 5
_RESPAWN_WINDOW_S = 60.0
_WAKE = signal.SIGRTMIN + 1
_FORWARDED = {signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGCONT}
_ENDING = {signal.SIGTERM, signal.SIGHUP, signal.SIGINT}
_TERMINAL = {signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP}
"""A terminal sends these to the whole group, srun included: forwarding them would deliver them twice."""


def sent_by_process(info: signal.struct_siginfo) -> bool:
    """True where a process sent a signal, as with kill(1); a terminal's keys are sent by the kernel."""
    return info.si_code <= 0


def sent_by_slurm(sender_pid: int) -> bool:
    """True where a slurmstepd sent a signal: it signals srun too, unless we are its direct child."""
    sender = procfs.stat(sender_pid)
    return sender is not None and sender.command.startswith("slurmstepd")


class Launcher:
    """Runs a command under supervision.

    `plain` is what to fall back to: the user's srun. `{fd}` in the supervisor's words becomes the socket's number.
    """

    def __init__(self, plain: Sequence[str], supervisor: Sequence[str], *, clock: SystemClock = CLOCK) -> None:
        self._plain = messages.LaunchSrun("plain", tuple(plain), {}, ())
        self._supervisor_argv = list(supervisor)
        self._clock = clock
        self._inbox: queue.Queue[messages.ToLauncher | messages.SupervisorGone] = queue.Queue()
        self._channel: socket.socket | None = None
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._supervised = False
        self._spawned_at_s: list[float] = []
        self._silent_ticks = 0
        self._first_message_by_s = 0.0
        self._srun: subprocess.Popen[bytes] | None = None
        self._ended: int | None = None
        """Exit code of the last srun, until another one is started."""
        self._attempt = ""
        self._evicted: tuple[str, ...] = ()
        self._parent = os.getppid()
        self._old_mask: set[signal.Signals | int] = set()
        # A shell starts background jobs with SIGINT ignored, nohup with SIGHUP. Signals that we block arrive all the
        # same.
        self._ignored = {number for number in _ENDING if signal.getsignal(number) == signal.SIG_IGN}

    # -- the supervisor ----------------------------------------------------------------------------------------

    def _spawn_supervisor(self) -> bool:
        now_s = self._clock.monotonic_s()
        self._spawned_at_s = [at_s for at_s in self._spawned_at_s if now_s - at_s < _RESPAWN_WINDOW_S]
        if len(self._spawned_at_s) >= _MAX_RESPAWNS:
            return False
        self._spawned_at_s.append(now_s)
        ours, theirs = socket.socketpair()
        argv = [word.replace("{fd}", str(theirs.fileno())) for word in self._supervisor_argv]
        try:
            self._supervisor = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                preexec_fn=self._prepare_supervisor,  # noqa: PLW1509 (masks must be undone in the child; see _read)
            )
        except OSError as error:
            sys.stderr.write(f"srobust: the supervisor cannot be started: {error}; running without it\n")
            ours.close()
            return False
        finally:
            theirs.close()
        self._channel = ours
        threading.Thread(target=self._read, args=(ours, self._supervisor.pid), daemon=True).start()
        return True

    def _prepare_supervisor(self) -> None:
        os.setpgid(0, 0)  # a Ctrl-C is for the training
        signal.pthread_sigmask(signal.SIG_SETMASK, self._old_mask)

    def _read(self, channel: socket.socket, pid: int) -> None:
        with contextlib.suppress(OSError, UnicodeDecodeError), channel.makefile("r", encoding="utf-8") as lines:
            for line in lines:
                with contextlib.suppress(ValueError):
                    self._inbox.put(messages.to_launcher(line))
                    os.kill(os.getpid(), _WAKE)
        self._inbox.put(messages.SupervisorGone(pid))
        os.kill(os.getpid(), _WAKE)

    def _send(self, message: messages.ToSupervisor) -> None:
        if self._channel is not None:
            with contextlib.suppress(OSError):
                self._channel.sendall(messages.encode(message))

    # -- srun --------------------------------------------------------------------------------------------------

    def _launch(self, order: messages.LaunchSrun) -> int | None:
        """Start srun; an exit code where it cannot be started."""
        env = {k: v for k, v in os.environ.items() if k not in order.unset}
        env.update(order.env)
        self._attempt, self._evicted = order.attempt, order.evicted
        try:
            self._srun = subprocess.Popen(
                order.argv,
                env=env,
                preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, self._old_mask) and None,  # noqa: PLW1509
            )
        except OSError as error:
            sys.stderr.write(f"srobust: {order.argv[0]}: {error.strerror}; is Slurm installed on this node?\n")
            return 127 if isinstance(error, FileNotFoundError) else 126
        self._ended = None
        self._send(messages.SrunStarted(self._attempt, self._srun.pid))
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
        watched = {signal.SIGCHLD, _WAKE} | _FORWARDED | _TERMINAL
        self._old_mask = set(signal.pthread_sigmask(signal.SIG_BLOCK, watched))
        self._supervised = self._spawn_supervisor()
        self._send(messages.LauncherReady())
        # Without a supervisor no first message can arrive.
        self._first_message_by_s = self._clock.monotonic_s() + (_FIRST_MESSAGE_S if self._supervised else 0.0)
        while True:
            code = self._wait(watched)
            if code is None:
                code = self._note_srun_end()
            while code is None and not self._inbox.empty():
                self._silent_ticks = 0
                code = self._carry_out(self._inbox.get())
                self._supervised = self._channel is not None
            if code is not None:
                return code

    def _wait(self, watched: set[signal.Signals | int]) -> int | None:
        """Wait for a signal or the end of a tick, and react to it; an exit code where that is the end."""
        nothing_launched = self._attempt == "" and self._srun is None and self._ended is None
        left_s = max(0.0, self._first_message_by_s - self._clock.monotonic_s())
        info = signal.sigtimedwait(watched, left_s if nothing_launched else _TICK_S)
        if info is not None:
            return self._on_signal(info)
        if not nothing_launched:
            self._end_frozen_supervisor()
            return None
        if self._supervised:
            sys.stderr.write(f"srobust: the supervisor sent nothing for {_FIRST_MESSAGE_S:g} s; running without it\n")
        self._supervised = False
        return self._launch(self._plain)

    def _note_srun_end(self) -> int | None:
        """Report srun's end to the supervisor; its exit code where there is none."""
        code = self._reap()
        if code is None:
            return None
        if not self._supervised or self._channel is None:
            return code
        self._ended = code
        self._send(messages.SrunEnded(self._attempt, code))
        return None

    def _on_signal(self, info: signal.struct_siginfo) -> int | None:
        """Forward a signal; an exit code where it ends us."""
        if self._srun is None and info.si_signo in _ENDING - self._ignored:
            # There is no srun to forward it to: before the launch there is none, and afterwards the job ends, or is
            # requeued; under proctrack/linuxproc nothing else would end us.
            self._end_supervisor()
            return 128 + info.si_signo
        self._forward(info)
        return None

    def _forward(self, info: signal.struct_siginfo) -> None:
        number = signal.Signals(info.si_signo) if info.si_signo < signal.SIGRTMIN else None
        if self._srun is None or not (number in _FORWARDED or (number in _TERMINAL and sent_by_process(info))):
            return
        if sent_by_slurm(info.si_pid) and os.getppid() != info.si_pid:
            return
        with contextlib.suppress(ProcessLookupError):
            self._srun.send_signal(number)

    def _carry_out(self, message: messages.ToLauncher | messages.SupervisorGone) -> int | None:
        """Do what the supervisor asks; an exit code where that is the end."""
        if isinstance(message, messages.LaunchSrun):
            return self._launch(message) if self._srun is None else None
        if isinstance(message, messages.KillSrun) and self._srun is not None:
            self._srun.kill()
        elif isinstance(message, messages.SupervisorPrepares):
            within_s = min(message.within_s, _LONGEST_FIRST_MESSAGE_S)
            self._first_message_by_s = self._clock.monotonic_s() + within_s + _FIRST_MESSAGE_S
        elif isinstance(message, messages.ExitWith):
            self._end_supervisor()
            return message.code
        elif isinstance(message, messages.WaitForRequeue):
            return self._wait_for_requeue(message)
        elif isinstance(message, messages.SupervisorGone):
            return self._replace_supervisor(message.pid)
        return None

    def _replace_supervisor(self, pid: int) -> int | None:
        """Start another supervisor, or run without one; an exit code where nothing is left to run."""
        if self._supervisor is None or pid != self._supervisor.pid:
            return None
        self._supervisor.wait()
        self._channel = None
        if os.getppid() != self._parent:
            # The script has ended: its job has ended or was requeued, and a new supervisor would act on the next run.
            return 128 + signal.SIGTERM
        if self._spawn_supervisor():
            if self._srun is not None:
                self._send(messages.SrunStarted(self._attempt, self._srun.pid, self._evicted))
            elif self._ended is not None:
                self._send(messages.SrunEnded(self._attempt, self._ended, self._evicted))
            else:
                self._send(messages.LauncherReady())
            return None
        if self._srun is None:
            return self._ended if self._ended is not None else self._launch(self._plain)
        return None

    def _wait_for_requeue(self, wait: messages.WaitForRequeue) -> int:
        """Give up everything but our pid. Returns only where there is no shell to become.

        The supervisor sends its last messages and ends by itself.
        """
        if waiting_shell.is_batch_script(self._parent):
            waiting_shell.die_with_parent(self._parent)
        # There is no srun to forward the user's own signals to; our own may be pending, and would end us.
        for number in (signal.SIGUSR1, signal.SIGUSR2, _WAKE):
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._old_mask)
        return waiting_shell.become(wait.pause_s, wait.argv)

    def _end_frozen_supervisor(self) -> None:
        """Kill a supervisor that was silent for too long; its end is then handled like any other."""
        self._silent_ticks += 1
        if self._silent_ticks >= _MAX_SILENT_TICKS and self._channel is not None and self._supervisor is not None:
            silent_s = _TICK_S * _MAX_SILENT_TICKS
            sys.stderr.write(f"srobust: no sign of the supervisor for {silent_s:g} s; starting another one\n")
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
