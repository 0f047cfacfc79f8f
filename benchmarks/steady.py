"""A training with nothing in it but work: each step digests the same bytes as often, and is reported."""

from __future__ import annotations

import hashlib

from slurm_robust import progress

DATA = bytes(range(256)) * 1024
ROUNDS = 100


def main() -> None:
    """Work until somebody ends it."""
    step = 0
    while True:
        for _ in range(ROUNDS):
            hashlib.sha256(DATA).digest()
        step += 1
        progress.step(step, loss=1.0, grad_norm=1.0)


if __name__ == "__main__":
    main()
