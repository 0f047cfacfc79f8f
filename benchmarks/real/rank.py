"""One rank: a small training over gloo or NCCL that meets its fault at a known step.

    SLURM_PROCID=… SLURM_STEP_NUM_TASKS=… python rank.py FOLDER PROGRAM FAULT WHERE RANKS [BACKEND DEVICE]

WHERE is where the fault strikes: `step` (between compute and reduction), `worker` (in a data loader's process), or
`loader` (in the rank's own data loading). BACKEND and DEVICE are `gloo cpu` unless named. On `cuda`, ranks share the
GPUs that there are; Python runs ahead of them, and waits for a loss at every fifth step, as a training that logs does.
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
from real.transport import Transport, join
from slurm_robust import progress

STRIKES_AT = 12
STEPS = 100_000
_LOGS_EVERY = 5
"""Steps; only on GPUs, where nothing else makes Python wait."""


class Run(Context):
    """One rank's run."""

    def __init__(self, folder: Path, fault: str, where: str, ranks: tuple[int, ...], device: str = "cpu") -> None:
        super().__init__(folder, int(os.environ["SLURM_PROCID"]), ranks, device)
        self.fault, self.where = fault, where
        self.world = int(os.environ["SLURM_STEP_NUM_TASKS"])

    def strike(self, where: str, number: int) -> None:
        """Meet the fault, if this is the place and the time."""
        if where != self.where or number != STRIKES_AT or self.rank not in self.only:
            return
        (self.folder / f"struck-{self.rank}").touch()
        FAULTS[self.fault](self)

    def log(self, number: int, loss: torch.Tensor) -> None:
        """Read the loss now and then; on a GPU that waits for all that was launched."""
        if self.device != "cpu" and number % _LOGS_EVERY == 0:
            loss.item()


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
    model = torch.nn.Linear(64, 64).to(run.device)
    for number, batch in enumerate(_batches(run)):
        loss = model(batch.to(run.device)).sum()
        loss.backward()
        run.strike("step", number)
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        run.log(number, loss)
        progress.step(number)


def ddp(run: Run) -> None:
    """Torch's own data parallel wrapper: gradients are reduced inside the backward pass."""
    model = DistributedDataParallel(torch.nn.Linear(64, 64).to(run.device))
    for number, batch in enumerate(_batches(run)):
        loss = model(batch.to(run.device)).sum()
        run.strike("step", number)
        loss.backward()
        run.log(number, loss)
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
        batch = torch.ones(16, device=run.device)
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
        batch = torch.ones(16, device=run.device)
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
    folder, program, fault, where, ranks, *more = argv
    transport = Transport(*more)
    run = Run(Path(folder), fault, where, tuple(int(r) for r in ranks.split(",") if r), transport.device)
    join(transport, f"{folder}/rendezvous", run.rank, run.world, timedelta(hours=1))
    if transport.backend == "gloo":
        answer_requests_for_dumps(run)
    PROGRAMS[program](run)


if __name__ == "__main__":
    main(sys.argv[1:])
