"""A training with tensor, pipeline and data parallelism, in the order tp-pp-dp, whose messages are real and small.

    srun python parallel_training.py CHECKPOINT_DIR STEPS TP PP

BREAK_FILE is created at step 5, so that other parts of a test can begin to break something.
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

BREAKS_AT = 5
NUMBERS = 128


class Replica:
    """This rank's place: its stage, and the groups that it is a member of."""

    def __init__(self, rank: int, world: int, tp: int, pp: int) -> None:
        dp = world // (tp * pp)
        replica, self.stage = rank // (tp * pp), rank // tp % pp
        self.before = rank - tp if self.stage > 0 else None
        self.after = rank + tp if self.stage < pp - 1 else None
        first = replica * tp * pp
        mine = {
            "tp": list(range(rank - rank % tp, rank - rank % tp + tp)),
            "pp": list(range(first + rank % tp, first + tp * pp, tp)),
            "dp": [rank % (tp * pp) + n * tp * pp for n in range(dp)],
        }
        self.size = tp
        self.groups = {
            kind: dist.new_group(ranks, use_local_synchronization=True, group_desc=kind) for kind, ranks in mine.items()
        }

    def step(self) -> None:
        """Forward through the stages, backward, and the sum of the gradients."""
        part, whole = torch.ones(NUMBERS), torch.empty(NUMBERS * self.size)
        if self.before is not None:
            dist.recv(part, self.before, group=self.groups["pp"])
        dist.all_gather_into_tensor(whole, part, group=self.groups["tp"])
        if self.after is not None:
            dist.send(part, self.after, group=self.groups["pp"])
            dist.recv(part, self.after, group=self.groups["pp"])
        if self.before is not None:
            dist.send(part, self.before, group=self.groups["pp"])
        dist.all_reduce(part, group=self.groups["dp"])


def main() -> None:
    """Train."""
    folder, steps, tp, pp = sys.argv[1], *map(int, sys.argv[2:5])
    rank, world, _ = rendezvous()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    replica = Replica(rank, world, tp, pp)
    progress.mark("process_groups_ready")
    progress.layout(tp=tp, pp=pp, dp=world // (tp * pp))
    found = checkpoint.resume_from_env(folder)
    first = checkpoint.load(found.path, rank=0)["step"] + 1 if found.path is not None else 1
    for step in range(first, steps + 1):
        time.sleep(0.2)
        if step == BREAKS_AT and (path := os.environ.get("BREAK_FILE")):
            Path(path).touch()
        replica.step()
        progress.step(step, loss=1.0 / step)
        checkpoint.save(folder, step, {"step": step}, required=False)
    if rank == 0:
        print("finished", flush=True)
    progress.set_phase("idle")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
