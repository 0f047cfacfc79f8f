"""How programs end: silent exit codes, ranks that end early, long shutdowns."""

from __future__ import annotations

import atexit
import os
import sys
import threading

from calm_kit import DIR, RANK, TRACEBACK, by_sockets, by_torch, entry, nap, program, say, script, train


def _trains_and_ends_with(code: int) -> None:
    train(30, by_sockets())
    sys.exit(code)


@program(0, code=1)
def silent_code_1() -> None:
    """All ranks end with exit code 1 after training, without a word: the target was not reached."""
    _trains_and_ends_with(1)


@program(0, code=3)
def silent_code_3() -> None:
    """All ranks end with exit code 3 after training: time for the next stage."""
    _trains_and_ends_with(3)


@program(0, code=17)
def silent_code_17() -> None:
    """All ranks end with exit code 17 after training: early stopping."""
    _trains_and_ends_with(17)


@program(0, code=3)
def one_rank_ends_with_3() -> None:
    """The last rank ends with exit code 3 by design, all others with 0."""
    train(30, by_sockets())
    sys.exit(3 if RANK else 0)


@program(60)
def one_rank_ends_long_before() -> None:
    """Rank 1 ends with 0 after some steps; rank 0 works alone for another minute and prints on."""
    train(30, by_sockets())
    if RANK == 0:
        train(150, show="phase 2 step {} loss {:.3f}")


@program(75)
def one_rank_ends_and_the_other_is_silent() -> None:
    """Rank 0 ends with 0; rank 1 exports the model for 75 s without a word."""
    train(30, by_sockets())
    if RANK == 1:
        nap(75)


@program(60)
def long_shutdown() -> None:
    """After the last step each rank uploads its logs in an exit handler for a minute."""
    atexit.register(nap, 60)
    train(30, by_torch())


@program(60)
def thread_outlives_main() -> None:
    """The main thread ends; a thread that is no daemon uploads for a minute."""
    train(30, by_sockets())
    threading.Thread(target=nap, args=(60,)).start()


@program(0)
def hard_exit() -> None:
    """Each rank ends by os._exit(0) right after its last line."""
    train(20, by_sockets())
    os._exit(0)


@program(30, code=2)
def early_failure_is_reported() -> None:
    """Rank 1 fails in its input check before any step, rank 0 waits 30 s for nothing and ends with 2."""
    if RANK == 1:
        say("config error: batch size 0")
        sys.exit(2)
    nap(30)
    sys.exit(2)


@program(0, code=1)
def own_error_with_traceback() -> None:
    """All ranks end with the same TypeError after training: the program's own, to be run once."""
    train(30, by_sockets())
    raise TypeError("unsupported operand: the last layer has no bias")


script(
    "prepare-or-repair", "ends", "A step fails by design after some steps, and the script runs another one instead.", 0,
    "$launch $me silent-code-3 || $launch $me hard-exit",
)  # fmt: skip
script(
    "missing-program", "ends", "The script tries a program that may be missing, and goes on with another one.", 0,
    "$launch ./not-there 2>/dev/null || $launch $me hard-exit",
)  # fmt: skip
script(
    "time-boxed", "ends", "`timeout` ends the program after 40 s, with exit code 124.", 0,
    "$launch timeout $(scaled 40) $me trains-until-it-is-ended", code=124, least_scale=0.1, noise=TRACEBACK,
)  # fmt: skip
script(
    "loops-until-done", "ends",
    "A script starts the step again while it ends with 3, as programs want that train in rounds.", 0,
    "for i in 1 2 3; do $launch $me one-round && break; done; echo rounds: $i",
)  # fmt: skip
script(
    "array-task-ends-with-3", "ends", "An array; each task ends with 3 after its training is done.", 0,
    "$launch $me silent-code-3", sbatch=("--array=1-2",), tasks=1, nodes=1, code=3,
)  # fmt: skip


@entry
def trains_until_it_is_ended() -> None:
    """Train for longer than the script allows."""
    train(10_000, by_sockets(), show="")


@entry
def one_round() -> None:
    """Train for some steps; end with 3 in the first two rounds, with 0 in the third."""
    rounds = DIR / f"rounds-{RANK}"
    rounds.open("a").write("x")
    train(12, by_sockets())
    sys.exit(0 if len(rounds.read_text()) > 2 else 3)
