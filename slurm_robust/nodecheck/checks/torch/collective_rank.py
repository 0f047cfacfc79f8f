"""Runs one GPU's process of the check `collective`: sums up with the other GPUs, and tells whether the sum is right.

`python collective_rank.py RANK WORLD FILE DEVICE SECONDS ELEMENTS`; prints `ok` and the milliseconds, or how many
values are wrong. The process ends itself after SECONDS, even if its parent is gone.
"""

from __future__ import annotations

import datetime as dt
import signal
import sys
import time


def main(argv: list[str]) -> int:
    """Take part in the sum.

    Returns:
        0 if the sum is right, 1 if it is wrong.
    """
    rank, world, seconds, elements = int(argv[0]), int(argv[1]), int(argv[4]), int(argv[5])
    signal.alarm(seconds)
    import torch  # noqa: PLC0415 (the alarm comes first: loading it can hang)
    import torch.distributed as dist  # noqa: PLC0415 (the same)

    device = argv[3]
    if device != "cpu":
        torch.cuda.set_device(device)
    limit = dt.timedelta(seconds=seconds)
    backend = "gloo" if device == "cpu" else "nccl"
    dist.init_process_group(backend, init_method=f"file://{argv[2]}", rank=rank, world_size=world, timeout=limit)
    wrong = 0
    began_s = time.monotonic()
    for turn in range(3):
        # Whole numbers below 2**24: the sum is exact in any order.
        values = (torch.arange(elements) % 97 + turn).float().to(device) * (rank + 1)
        dist.all_reduce(values)
        wanted = (torch.arange(elements) % 97 + turn).float() * (world * (world + 1) // 2)
        wrong += int((values.cpu() != wanted).sum())
    print(f"{'wrong' if wrong else 'ok'} {wrong} {(time.monotonic() - began_s) * 1000:.1f}", flush=True)
    dist.destroy_process_group()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
