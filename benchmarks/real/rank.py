"""One rank: a small training over gloo that meets its fault at a known step.

    RANK=… WORLD_SIZE=… python rank.py FOLDER PROGRAM FAULT WHERE RANKS

WHERE is where the fault strikes: `step` (between compute and reduction), `worker` (in a data loader's process), or
`loader` (in the rank's own data loading).
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from real.faults import FAULTS, Context
from slurm_robust import progress

STRIKES_AT = 12
STEPS = 100_000


class Run(Context):
    """One rank's run."""

    def __init__(self, folder: Path, fault: str, where: str, ranks: tuple[int, ...]) -> None:
        super().__init__(folder, int(os.environ["SLURM_PROCID"]), ranks)
        self.fault, self.where = fault, where
        self.world = int(os.environ["SLURM_STEP_NUM_TASKS"])

    def strike(self, where: str, number: int) -> None:
        """Meet the fault, if this is the place and the time."""
        if where != self.where or number != STRIKES_AT or self.rank not in self.only:
            return
        (self.folder / f"struck-{self.rank}").touch()
        FAULTS[self.fault](self)


class Shards(Dataset[torch.Tensor]):
    """Batches of ones; the fault may strike here."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        # A worker reads ahead by two batches.
        self.run.strike("worker" if torch.utils.data.get_worker_info() else "loader", index)
        return torch.ones(64)


def _batches(run: Run) -> DataLoader[torch.Tensor]:
    return DataLoader(Shards(run), batch_size=1, num_workers=int(run.where == "worker"))


def reduce(run: Run) -> None:
    """Data parallel by hand: each gradient is reduced by the loop."""
    model = torch.nn.Linear(64, 64)
    for number, batch in enumerate(_batches(run)):
        model(batch).sum().backward()
        run.strike("step", number)
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        progress.step(number)


def ddp(run: Run) -> None:
    """Torch's own data parallel wrapper: gradients are reduced inside the backward pass."""
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    for number, batch in enumerate(_batches(run)):
        loss = model(batch).sum()
        run.strike("step", number)
        loss.backward()
        progress.step(number)


def barrier(run: Run) -> None:
    """Now and then some ranks do something of their own, and the others wait for them at a barrier."""
    for number in range(STEPS):
        run.strike("step", number)
        dist.barrier()
        progress.step(number)


def pipeline(run: Run) -> None:
    """A chain of stages: activations go forward, gradients back."""
    before, after = run.rank - 1, run.rank + 1
    for number in range(STEPS):
        batch = torch.ones(16)
        if before >= 0:
            dist.recv(batch, src=before)
        run.strike("step", number)
        if after < run.world:
            dist.send(batch * 2, dst=after)
            dist.recv(batch, src=after)
        if before >= 0:
            dist.send(batch, dst=before)
        progress.step(number)


def grid(run: Run) -> None:
    """Tensor, pipeline and data parallel groups of two, in Megatron's order."""
    mine: dict[str, dist.ProcessGroup] = {}
    progress.layout(tp=2, pp=2, dp=2)
    for name, groups in (("tp", [(r, r + 1) for r in range(0, 8, 2)]), ("dp", [(0, 2), (1, 3), (4, 6), (5, 7)])):
        for members in groups:
            made = dist.new_group(list(members))
            if run.rank in members:
                mine[name] = made
    neighbour = (run.rank + 4) % 8
    for number in range(STEPS):
        batch = torch.ones(16)
        if run.rank >= 4:
            dist.recv(batch, src=neighbour)
        run.strike("step", number)
        dist.all_reduce(batch, group=mine["tp"])
        if run.rank < 4:
            dist.send(batch, dst=neighbour)
            dist.recv(batch, src=neighbour)
        else:
            dist.send(batch, dst=neighbour)
        dist.all_reduce(batch, group=mine["dp"])
        progress.step(number)


def answer_requests_for_dumps(run: Run) -> None:
    """What NCCL's monitor thread does, for gloo: make the pipe, and write the recorder's dump when it is written to."""
    stem, pipe = os.environ.get("TORCH_FR_DUMP_TEMP_FILE"), os.environ.get("TORCH_NCCL_DEBUG_INFO_PIPE_FILE")
    if not stem or not pipe:
        return
    os.mkfifo(f"{pipe}{run.rank}.pipe")
    # Opened for both, so that a read waits and never sees an end.
    asked = os.open(f"{pipe}{run.rank}.pipe", os.O_RDWR)

    def answer() -> None:
        while os.read(asked, 128):
            body = torch._C._distributed_c10d._dump_fr_trace(True, False, False)
            Path(f"{stem}{run.rank}").write_bytes(body)

    threading.Thread(target=answer, daemon=True).start()


PROGRAMS: dict[str, Callable[[Run], None]] = {f.__name__: f for f in (reduce, ddp, barrier, pipeline, grid)}


def main(argv: list[str]) -> None:
    """Train until something ends it."""
    folder, program, fault, where, ranks = argv
    torch.set_num_threads(1)
    run = Run(Path(folder), fault, where, tuple(int(r) for r in ranks.split(",") if r))
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", timeout=timedelta(hours=1),
                            rank=run.rank, world_size=run.world)  # fmt: skip
    answer_requests_for_dumps(run)
    PROGRAMS[program](run)


if __name__ == "__main__":
    main(sys.argv[1:])
