"""A worker of torchrun: fails once on all ranks, as workers do whose peer was lost, and then trains to the end."""

from __future__ import annotations

import os

os.environ["CALM_RANK"], os.environ["CALM_SIZE"] = os.environ["RANK"], os.environ["WORLD_SIZE"]

from calm_kit import by_sockets, nap, note_start, train  # noqa: E402 (it reads the rank)


def _main() -> None:
    again = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    note_start(f"launch {again}")
    train(12, by_sockets(f"launch-{again}"))
    if not again:
        nap(30)
        raise RuntimeError("the peer was lost")


if __name__ == "__main__":
    _main()
