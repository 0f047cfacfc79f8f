"""Runs as the outer process of `srobust run`: starts the user's `srun`, waits, and asks the supervisor for orders.

The launcher is small, so that it has little reason to fail and srun's first start waits for as little as possible
(`early_launch`). The supervisor is another process: if it dies, it is started again, and if it cannot run, the user's
srun runs without it. srun inherits stdin, stdout and stderr; signals are forwarded.
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
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from slurm_robust.supervise.agent.clock import CLOCK, SystemClock
from slurm_robust.supervise.launch import messages, srun_process, waiting_shell
from slurm_robust.supervise.launch.signal_sender import sent_by_process, sent_by_slurm
from slurm_robust.supervise.launch.user_end import Received, merged_interrupt_s
from slurm_robust.supervise.launch.warm_srun import WarmPlace

if TYPE_CHECKING:
    from slurm_robust.supervise.launch.early_launch import EarlyLaunch, EarlySrun

_FIRST_MESSAGE_S = 20.0
"""How long the supervisor may take to send its first launch; then the user's srun starts as typed."""
_LONGEST_FIRST_MESSAGE_S = 300.0
"""How long the supervisor may take if it says that it has something to prepare."""
_QUIET_START_S = 0.3
"""After an early launch, the supervisor's imports wait this long: they would take processor time from srun."""
_TICK_S = 60.0
_MAX_SILENT_TICKS = 10
"""A supervisor reports every half minute that it lives; after ten silent minutes it is killed and another one started.

Ticks are counted, not timed: while a job is suspended, neither the supervisor nor the launcher runs."""
_MAX_RESPAWNS = 5
_RESPAWN_WINDOW_S = 60.0
_LAST_WORDS_S = 1.0
_WARM_GONE = 1
"""Exit code of a warm step whose srun ended just before the step was to become the attempt."""
_ENDING = {signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT}
_MOST_SIGNALS = 8


def _report_of(early: EarlyLaunch) -> messages.StartedEarly:
    point = early.resume_point
    known = (str(point.path or ""), point.step, point.searched, point.skipped, point.notes)
    return messages.StartedEarly(early.attempt, early.lineage, *known, early.output_from)


class Launcher:
    """Runs a command under supervision.

    `plain` is the fallback: the user's own srun. `{fd}` in the supervisor's words becomes the socket's number. `early`
    is an srun that was started before the supervisor. The supervisor inherits the descriptors `inherited`.
    """

    def __init__(
        self,
        plain: Sequence[str],
        supervisor: Sequence[str],
        *,
        early: EarlySrun | None = None,
        inherited: Sequence[int] = (),
        clock: SystemClock = CLOCK,
    ) -> None:
        self._plain = messages.LaunchSrun("plain", tuple(plain), {}, ())
        self._supervisor_argv = list(supervisor)
        self._early = early
        self._inherited = tuple(inherited)
        self._heard = False
        """Whether a supervisor has sent something: then it may have left traces that only a supervisor can complete."""
        self._clock = clock
        self._inbox: queue.Queue[messages.ToLauncher | messages.SupervisorGone] = queue.Queue()
        self._channel: socket.socket | None = None
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._supervised = False
        self._spawned_at_s: list[float] = []
        self._silent_ticks = 0
        self._first_message_by_s = 0.0
        self._srun: subprocess.Popen[bytes] | None = None
        self._signals: list[Received] = []
        """The first few signals that the current srun has received and that may end its step."""
        self._warm = WarmPlace()
        self._ended: int | None = None
        """Exit code of the last srun, until another srun is started."""
        self._attempt = ""
        self._evicted: tuple[str, ...] = ()
        self._parent = os.getppid()
        self._old_mask: Collection[signal.Signals | int] = set()
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
        try:
            ours, theirs = socket.socketpair()
            with theirs:
                self._supervisor = subprocess.Popen(
                    [word.replace("{fd}", str(theirs.fileno())) for word in self._supervisor_argv],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno(), *self._inherited],
                    preexec_fn=self._prepare_supervisor,  # noqa: PLW1509 (masks must be undone in the child; see _read)
                )
            self._reader = threading.Thread(target=self._read, args=(ours, self._supervisor.pid), daemon=True)
            self._reader.start()
        except (OSError, RuntimeError) as error:  # the user has no descriptor, process or thread left
            sys.stderr.write(f"srobust: the supervisor cannot be started: {error}; running without it\n")
            return False
        self._channel = ours
        return True

    def _prepare_supervisor(self) -> None:
        os.setpgid(0, 0)  # a Ctrl-C is for the training
        signal.pthread_sigmask(signal.SIG_SETMASK, self._old_mask)

    def _read(self, channel: socket.socket, pid: int) -> None:
        with contextlib.suppress(OSError, UnicodeDecodeError), channel.makefile("r", encoding="utf-8") as lines:
            for line in lines:
                with contextlib.suppress(ValueError):
                    self._inbox.put(messages.to_launcher(line))
                    os.kill(os.getpid(), srun_process.WAKE)
        self._inbox.put(messages.SupervisorGone(pid))
        os.kill(os.getpid(), srun_process.WAKE)

    def _send(self, message: messages.ToSupervisor) -> None:
        if self._channel is not None:
            with contextlib.suppress(OSError):
                self._channel.sendall(messages.encode(message))

    # -- srun --------------------------------------------------------------------------------------------------

    def _launch(self, order: messages.LaunchSrun) -> int | None:
        """Start srun; return an exit code if it cannot be started."""
        env = srun_process.environment(order)
        self._attempt, self._evicted = order.attempt, order.evicted
        try:
            self._srun = srun_process.start(order.argv, env, self._old_mask)
        except OSError as error:
            sys.stderr.write(srun_process.failed_text(order.argv, error))
            return srun_process.failed_code(error)
        self._ended, self._signals = None, []
        self._send(messages.SrunStarted(self._attempt, self._srun.pid))
        return None

    def _reap(self) -> int | None:
        """Return srun's exit code as a shell would give it, if srun has ended."""
        if self._srun is None or self._srun.poll() is None:
            return None
        code = srun_process.exit_code(self._srun.returncode)
        if (at_s := merged_interrupt_s(self._signals, code, self._clock.monotonic_s())) is not None:
            self._note_signal(signal.SIGINT, at_s)
        self._srun = None
        self._warm.finish_messages()
        return code

    def _carry_out_warm(self, order: messages.WarmOrder) -> None:
        """Start, adopt or end the warm step's srun; the supervisor is told of an end that it did not order."""
        if isinstance(order, messages.StartWarm):
            if why := self._warm.start(order, srun_process.environment(order), self._old_mask):
                self._send(messages.WarmEnded(order.attempt, 127, why))
        elif isinstance(order, messages.EndWarm):
            self._warm.end(order.attempt)
        elif self._srun is None:
            self._attempt, self._evicted = order.attempt, order.evicted
            self._srun, self._ended, self._signals = self._warm.adopt(order.attempt), None, []
            if self._srun is None:
                self._ended = _WARM_GONE
                self._send(messages.SrunEnded(order.attempt, _WARM_GONE))
                return
            self._send(messages.SrunStarted(self._attempt, self._srun.pid))
            os.kill(os.getpid(), srun_process.WAKE)  # it may have ended meanwhile, and its signal be taken

    # -- the loop ----------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Run until there is an exit code."""
        if self._early is None:
            self._old_mask = srun_process.block_signals()
        else:
            self._old_mask, self._srun, self._attempt = self._early.mask, self._early.srun, self._early.launch.attempt
            code = self._quiet_start()
            if code is not None:
                return code
        self._supervised = self._spawn_supervisor()
        if not self._supervised and self._ended is not None:
            return self._ended
        self._report_state()
        # Without a supervisor no first message can arrive.
        self._first_message_by_s = self._clock.monotonic_s() + (_FIRST_MESSAGE_S if self._supervised else 0.0)
        while True:
            code = self._wait()
            if (ended := self._warm.ended()) is not None:
                self._send(messages.WarmEnded(*ended))
            if code is None:
                code = self._note_srun_end()
            while code is None and not self._inbox.empty():
                self._silent_ticks = 0
                message = self._inbox.get()
                self._heard = self._heard or not isinstance(message, messages.SupervisorGone)
                code = self._carry_out(message)
                self._supervised = self._channel is not None
            if code is not None:
                self._warm.end()
                return code

    def _quiet_start(self) -> int | None:
        """Leave the machine to an srun that has just been started; return its exit code if it ended well by then."""
        until_s = self._clock.monotonic_s() + _QUIET_START_S
        while self._srun is not None and (left_s := until_s - self._clock.monotonic_s()) > 0:
            info = signal.sigtimedwait(srun_process.WATCHED, left_s)
            if info is not None:
                self._forward(info)
            self._ended = self._reap()
        return self._ended if self._supervisor_unneeded(self._ended) else None

    def _report_state(self) -> None:
        """Report our state to a supervisor that has just been started."""
        if self._early is not None and not self._heard:
            self._send(_report_of(self._early.launch))
            if self._ended is not None:
                self._send(messages.SrunEnded(self._attempt, self._ended))
        elif self._srun is not None:
            self._send(messages.SrunStarted(self._attempt, self._srun.pid, self._evicted))
        elif self._ended is not None:
            self._send(messages.SrunEnded(self._attempt, self._ended, self._evicted))
        else:
            self._send(messages.LauncherReady())
        for received in self._signals:
            self._send(messages.SrunSignalled(self._attempt, *received))

    def _wait(self) -> int | None:
        """Wait for a signal or the end of a tick, and react; return an exit code if that is the end."""
        nothing_launched = self._attempt == "" and self._srun is None and self._ended is None
        unanswered = self._ended is not None and not self._heard
        left_s = max(0.0, self._first_message_by_s - self._clock.monotonic_s())
        info = signal.sigtimedwait(srun_process.WATCHED, left_s if nothing_launched or unanswered else _TICK_S)
        if info is not None:
            return self._on_signal(info)
        if unanswered:
            sys.stderr.write(f"srobust: srun has ended, and the supervisor sent nothing for {_FIRST_MESSAGE_S:g} s\n")
            self._kill_supervisor()
            return self._ended
        if not nothing_launched:
            self._end_frozen_supervisor()
            return None
        if self._supervised:
            sys.stderr.write(f"srobust: the supervisor sent nothing for {_FIRST_MESSAGE_S:g} s; running without it\n")
        self._supervised = False
        return self._launch(self._plain)

    def _note_srun_end(self) -> int | None:
        """Report srun's end to the supervisor; without a supervisor return the exit code."""
        code = self._reap()
        if code is None:
            return None
        if not self._supervised or self._channel is None or self._supervisor_unneeded(code):
            return code
        self._ended = code
        if not self._heard:
            self._first_message_by_s = self._clock.monotonic_s() + _FIRST_MESSAGE_S
        self._send(messages.SrunEnded(self._attempt, code))
        return None

    def _on_signal(self, info: signal.struct_siginfo) -> int | None:
        """Forward a signal; return an exit code if the signal ends us."""
        if self._srun is None and info.si_signo in _ENDING - self._ignored:
            # There is no srun to forward it to: before the launch there is none, and afterwards the job ends, or is
            # requeued; under proctrack/linuxproc nothing else would end us.
            self._end_supervisor()
            typed_late = self._ended if info.si_signo in srun_process.TERMINAL else None
            return typed_late or 128 + info.si_signo
        self._forward(info)
        return None

    def _forward(self, info: signal.struct_siginfo) -> None:
        number = signal.Signals(info.si_signo) if info.si_signo < signal.SIGRTMIN else None
        typed = number in srun_process.TERMINAL and not sent_by_process(info)
        if self._srun is None or number not in srun_process.FORWARDED | srun_process.TERMINAL:
            return
        if number in _ENDING and len(self._signals) < _MOST_SIGNALS:
            self._note_signal(number, self._clock.monotonic_s())
        if typed or (sent_by_slurm(info.si_pid) and os.getppid() != info.si_pid):
            return
        with contextlib.suppress(ProcessLookupError):
            self._srun.send_signal(number)

    def _note_signal(self, number: int, at_s: float) -> None:
        self._signals.append(Received(number, at_s))
        self._send(messages.SrunSignalled(self._attempt, number, at_s))

    def _carry_out(self, message: messages.ToLauncher | messages.SupervisorGone) -> int | None:
        """Do what the supervisor asks; return an exit code if that is the end."""
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
            self._warm.end()
            return self._wait_for_requeue(message)
        elif isinstance(message, messages.WarmOrder):
            self._carry_out_warm(message)
        elif isinstance(message, messages.SupervisorGone):
            return self._replace_supervisor(message.pid)
        return None

    def _replace_supervisor(self, pid: int) -> int | None:
        """Start another supervisor, or run without one; return an exit code if nothing is left to run."""
        if self._supervisor is None or pid != self._supervisor.pid:
            return None
        self._supervisor.wait()
        self._channel = None
        self._warm.end()  # another supervisor does not know it
        if os.getppid() != self._parent:
            # The script has ended: its job has ended or was requeued, and a new supervisor would act on the next run.
            return 128 + signal.SIGTERM
        if self._spawn_supervisor():
            self._report_state()
            return None
        if self._srun is None:
            return self._ended if self._ended is not None else self._launch(self._plain)
        if not self._heard:
            sys.stderr.write(
                "srobust: the supervisor cannot be started: the command goes on without it, and nothing ends it where "
                "one of its ranks dies or hangs\n"
            )
        return None

    def _wait_for_requeue(self, wait: messages.WaitForRequeue) -> int:
        """Give up everything except our pid. Returns only if there is no shell to become.

        The supervisor sends its last messages and ends by itself.
        """
        if waiting_shell.is_batch_script(self._parent):
            waiting_shell.die_with_parent(self._parent)
        # There is no srun to forward the user's own signals to; our own may be pending, and would end us.
        for number in (signal.SIGUSR1, signal.SIGUSR2, srun_process.WAKE):
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

    def _supervisor_unneeded(self, code: int | None) -> bool:
        """Return whether srun ended well so early that nothing is left to supervise; then end the supervisor.

        The supervisor has only loaded its modules so far, and left no trace.
        """
        alone = self._early is not None and self._early.launch.alone
        if code != 0 or not alone or self._heard or not self._inbox.empty():
            return False
        self._kill_supervisor()
        return True

    def _kill_supervisor(self) -> None:
        if self._supervisor is not None:
            self._supervisor.kill()
            self._supervisor.wait()

    def _end_supervisor(self) -> None:
        if self._channel is not None:
            with contextlib.suppress(OSError):
                self._channel.shutdown(socket.SHUT_RDWR)
        if self._supervisor is not None:
            try:
                self._supervisor.wait(5.0)
            except subprocess.TimeoutExpired:
                self._supervisor.kill()
