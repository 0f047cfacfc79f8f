"""Held out: signals and exit codes by design."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sys
import threading

from calm_kit import (
    DIR,
    RANK,
    SIZE,
    amid_training,
    by_sockets,
    entry,
    nap,
    program,
    say,
    script,
    seconds,
    train,
    until,
)


@program(45, tasks=3)
def preemption_drill() -> None:
    """Rank 1 sends SIGCONT and SIGTERM to all ranks, as a preemption does; all save for 45 s and train on."""
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    (DIR / f"pid-{RANK}").write_text(str(os.getpid()))
    meet = by_sockets()
    train(40, meet)
    if RANK == 1:
        for rank in range(SIZE):
            pid = int((DIR / f"pid-{rank}").read_text())
            os.kill(pid, signal.SIGCONT)
            os.kill(pid, signal.SIGTERM)
    until(lambda: bool(asked))
    say(f"rank {RANK}: asked to end by signal {asked[0]}, saving")
    nap(45)
    train(20, meet)


script(
    "trap-ends-with-143", "held",
    "A shell's trap for SIGTERM ends each task with 143, when its training asks for it.", 45,
    "$launch $mark bash -c \"trap 'echo saved by the trap; exit 143' TERM; $me asks-its-shell-to-end & wait\"",
    code=143,
)  # fmt: skip


@entry
def asks_its_shell_to_end() -> None:
    """Train; save for 45 s; tell the shell that it is over."""
    meet = by_sockets()
    train(30, meet)
    nap(45)
    meet()
    os.kill(os.getppid(), signal.SIGTERM)


@program(0, code=130)
def interrupts_itself() -> None:
    """A time budget is over: a thread interrupts the main one like Ctrl-C; the rank says so and ends with 130."""
    meet = by_sockets()
    train(40, meet)
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Timer(max(0.5, seconds(10)), os.kill, (os.getpid(), signal.SIGINT)).start()
        train(1, show="", each_s=600)
    except KeyboardInterrupt:
        say(f"rank {RANK}: time budget used, stopping as by Ctrl-C")
        sys.exit(130)


@program(20, code=42)
def old_error_and_a_code_of_its_own() -> None:
    """Rank 1 prints a CUDA error that it has survived; half a minute of steps later all ranks end with 42 by design."""

    def odd() -> None:
        sys.stderr.write(
            "[rank1]: Traceback (most recent call last):\n"
            "[rank1]: RuntimeError: CUDA error: an illegal memory access was encountered\n"
        )
        sys.stderr.flush()
        say("step repeated on fresh memory: all well")
        nap(20)

    meet = by_sockets()
    amid_training(odd, meet=meet)
    train(60, meet)
    sys.exit(42)


script(
    "abort-at-the-very-end", "held",
    "Each rank aborts in a destructor after all work is done; its shell ignores that.", 45,
    "$launch $mark bash -c \"$me aborts-at-its-end || true\"", noise=[r"Aborted", r"core dumped"],
)  # fmt: skip


@entry
def aborts_at_its_end() -> None:
    """Train, upload for 45 s, and abort."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    meet = by_sockets()
    train(30, meet)
    nap(45)
    meet()
    say(f"rank {RANK}: model saved, all done")
    sys.stderr.write("terminate called without an active exception\n")
    sys.stderr.flush()
    os.abort()


script(
    "pruned-trial", "held",
    "Three trials side by side; the script ends one of them by a signal to its srun, as planned.", 60,
    """$launch -N1 -n1 --exact $me short-trial & $launch -N1 -n1 --exact $me short-trial &
$launch -N1 -n1 --exact $me endless-trial > /dev/null 2>&1 & bad=$!
until [ -e endless ]; do sleep 1; done; sleep $(scaled 40)
kill $bad; wait $bad; echo the bad trial is pruned; wait""",
    tasks=3, nodes=3,
)  # fmt: skip


@entry
def short_trial() -> None:
    """Train alone, with a minute's pause."""
    train(20, show="trial step {} loss {:.4f}")
    nap(60)
    train(20, show="trial step {} loss {:.4f}")


@entry
def endless_trial() -> None:
    """Train until somebody ends it."""
    (DIR / "endless").touch()
    train(3000)


script(
    "perl-ranks", "held", "Ranks without Python or torch: perl, which prints steps, and stands in its own select.", 60,
    """cat > train.pl <<'END'
$| = 1;
my $scale = $ENV{CALM_SCALE};
for my $n (1 .. 60) {
    select(undef, undef, undef, 0.4 * $scale);
    printf "task %d iter: %d loss=%.4f\\n", $ENV{SLURM_PROCID}, $n, 3 / ($n + 2);
    select(undef, undef, undef, 60 * $scale) if $n == 40;
}
END
$launch $mark perl train.pl""",
    missing="" if shutil.which("perl") else "perl is not installed",
)  # fmt: skip
