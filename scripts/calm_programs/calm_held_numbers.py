"""Held out: losses and step times that look wrong and are not."""

from __future__ import annotations

from calm_kit import (
    RANK,
    by_sockets,
    nap,
    program,
    say,
    train,
)


@program(50)
def learning_rate_finder() -> None:
    """A range test: the loss grows to inf and nan by design; the weights are restored, and training begins at 1."""
    meet = by_sockets()
    for number in range(40):
        train(1, meet, show="")
        if RANK == 0:
            loss = ["inf", "nan"][number % 2] if number > 33 else f"{3 * 10 ** max(0, number - 20):.3g}"
            say(f"step {number + 1} lr {1e-7 * 1.5**number:.2e} loss {loss}")
    if RANK == 0:
        say("suggested learning rate 3e-4; weights restored")
    nap(50)
    for number in range(30):
        train(1, meet, show="")
        if RANK == 0:
            say(f"step {number + 1} loss {3 / (number + 3):.4f}")


@program(45)
def loss_scale_is_sought() -> None:
    """Mixed precision: for 45 s each step overflows and is skipped: the same step, loss nan; then all is well."""
    meet = by_sockets()
    for number in range(30):
        train(1, meet, show="", each_s=1.5)
        if RANK == 0:
            say(f"Gradient overflow. Skipping step, loss scaler 0 reducing loss scale to {2.0 ** (40 - number)}")
            say("step 0 loss nan grad_norm inf")
    train(30, meet, show="step {} loss {:.4f} grad_norm 1.0")


@program(20)
def fifty_times_slower_for_a_while() -> None:
    """One rank's steps take 20 s instead of 0.4 s, five times (a neighbour uses its storage); then all is as before."""
    meet = by_sockets()
    train(40, meet)
    for _ in range(5):
        if RANK == 1:
            nap(20)
        train(1, meet)
    train(20, meet)
