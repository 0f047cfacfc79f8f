"""A training on packed sequences: how many sums a step has depends on what the ranks tell each other.

    srun python packed_training.py CHECKPOINT_DIR STEPS

Where one rank is told another number than the rest, it waits for a sum that nobody else takes part in, and the rest
wait for its next message: all ranks stand in collectives, and no stack tells why.

BREAK_FILE is created at step 12, so that other parts of a test can begin to break something. WRONG_NODE names a node
whose ranks come to a wrong number by themselves from then on, in this program alone. With SROBUST_REPLAY nothing is
saved, and the training begins at step 1.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import torch
import torch.distributed as dist
from train import rendezvous

from slurm_robust import checkpoint, progress

BREAKS_AT = 12
SAVED_EVERY = 5
LENGTHS = 64
FULL = 4096


def main() -> None:
    """Train."""
    folder, steps = sys.argv[1], int(sys.argv[2])
    replay = os.environ.get("SROBUST_REPLAY") == "1"
    rank, world, _ = rendezvous()
    progress.mark("imports_done")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    sums = dist.new_group(list(range(world)))
    progress.mark("process_groups_ready")
    state = {"step": 0, "weights": torch.zeros(16)}
    if not replay and (found := checkpoint.resume_from_env(folder)).path is not None:
        state = checkpoint.load(found.path, rank=0)
        if rank == 0:
            print(f"resumed from step {state['step']}", flush=True)
    progress.mark("checkpoint_loaded")
    for step in range(state["step"] + 1, steps + 1):
        time.sleep(0.1)
        if step == BREAKS_AT and (path := os.environ.get("BREAK_FILE")):
            Path(path).touch()
        for _ in range(sums_of_step(step, world)):
            gradient = torch.full((16,), 1.0 / step)
            dist.all_reduce(gradient, group=sums)
            state["weights"] -= gradient
        state["step"] = step
        progress.step(step, loss=float(1.0 / step))
        if step % SAVED_EVERY == 0 and not replay:
            checkpoint.save(folder, step, state if rank == 0 else {"step": step}, required=False)
    progress.set_phase("idle")
    if rank == 0:
        print("finished", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def sums_of_step(step: int, world: int) -> int:
    """One, and one more for each full pack in the longest sequence of all ranks."""
    mine = torch.full((LENGTHS,), 100 + step, dtype=torch.int64)
    everyones = [torch.empty_like(mine) for _ in range(world)]
    dist.all_gather(everyones, mine)
    longest = int(torch.stack(everyones).max())
    if step >= BREAKS_AT and os.environ.get("WRONG_NODE", "") == os.environ.get("SLURMD_NODENAME"):
        longest += FULL
    return 1 + longest // FULL


if __name__ == "__main__":
    main()
