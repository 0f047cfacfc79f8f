"""What the ranks run: schedules of real trainings as generators of actions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from campaign.layout import Layout
from campaign.parts import Act
from campaign.pipelines import interleaved, one_f_one_b

EVERY_RANK = -1


@dataclass(frozen=True)
class Pause:
    """Something slow between two steps: an evaluation, a checkpoint, a first compilation.

    Attributes:
        place: evaluate, save or compile.
        step: After so many steps.
        seconds: On the ranks that do it.
        who: `all`, `first` (rank 0), or `replica` (the first data-parallel replica); the others wait at a barrier.
        announced: The program says so by its phase.
    """

    place: str
    step: int
    seconds: float
    who: str
    announced: bool = False


@dataclass(frozen=True)
class Job:
    """A training.

    Attributes:
        framework: megatron, fsdp or ddp (over gloo: nothing is launched ahead).
        layers: A stage and model chunk.
        depth: Operations that a host may be ahead of its device; 0 for gloo.
        chunks: Model chunks a stage, 1 for plain 1F1B.
        sequence_parallel: All-gather and reduce-scatter in place of all-reduce within a tensor-parallel block.
        p2p_sync: The host waits for the device after each exchange between stages.
        moe_sync: The host waits for the device to learn how many tokens each expert gets.
        log_every: Steps between losses that the host reads.
        prefetch: FSDP's all-gathers in flight.
    """

    framework: str
    layout: Layout
    layers: int = 2
    microbatches: int = 4
    depth: int = 64
    chunks: int = 1
    sequence_parallel: bool = False
    moe: bool = False
    moe_sync: bool = False
    p2p_sync: bool = True
    log_every: int = 1
    prefetch: int = 2
    steps: int = 3
    kernel_s: float = 0.02
    pauses: tuple[Pause, ...] = ()


def program(job: Job, rank: int) -> Iterator[Act]:
    """What this rank runs."""
    for step in range(job.steps):
        for pause in job.pauses:
            if pause.step == step and pause.place == "compile":
                yield from _pause(job, rank, pause)
        if job.framework == "megatron":
            yield from _megatron(job, rank, step)
        else:
            yield from (_fsdp if job.framework == "fsdp" else _ddp)(job, step)
        yield Act("step")
        for pause in job.pauses:
            if pause.step == step and pause.place != "compile":
                yield from _pause(job, rank, pause)


def takes_part(job: Job, rank: int, pause: Pause) -> bool:
    """Whether this rank does the slow thing itself."""
    return pause.who == "all" or (pause.who == "first" and rank == 0) or (
        pause.who == "replica" and job.layout.place(rank)[2] == 0
    )  # fmt: skip


def _pause(job: Job, rank: int, pause: Pause) -> Iterator[Act]:
    if pause.announced:
        yield Act("phase", op={"evaluate": "evaluate", "save": "checkpoint"}.get(pause.place, "train"))
    if takes_part(job, rank, pause):
        yield Act("file" if pause.place == "save" else "cpu", pause.place, pause.seconds)
    if pause.place != "compile":
        yield from barrier(job, f"{pause.place}.barrier")
    yield Act("phase", op="train")


def barrier(job: Job, place: str) -> Iterator[Act]:
    """All ranks meet; the host waits for it."""
    yield Act("comm", place, 0.0001, "world", "all_reduce_barrier" if job.depth else "barrier", 1)
    yield Act("sync", place)


def _megatron(job: Job, rank: int, step: int) -> Iterator[Act]:
    schedule = interleaved if job.chunks > 1 else one_f_one_b
    yield from schedule(job, rank)
    k = job.kernel_s
    pp = job.layout.pp
    yield Act("comm", "dp.reduce", k, "dp", "_reduce_scatter_base", 4096)
    stage = job.layout.place(rank)[3]
    if pp > 1 and stage in (0, pp - 1):
        yield Act("comm", "embedding", k, "embedding", "all_reduce", 2048)
    yield Act("comm", "norm", 0.001, "mp", "all_reduce", 1)
    yield Act("sync", "norm.item")
    yield Act("kernel", "optimizer", k)
    yield Act("comm", "dp.gather", k, "dp", "_all_gather_base", 4096)
    if stage == pp - 1:
        yield Act("comm", "loss", 0.001, "dp", "all_reduce", 1)
    if step % job.log_every == 0:
        yield Act("sync", "loss.item")


def _fsdp(job: Job, step: int) -> Iterator[Act]:
    k, layers = job.kernel_s, 2 * job.layers
    yield Act("load", "load", 0.002)
    for direction in ("forward", "backward"):
        place = "gather" if direction == "forward" else "backward"
        for layer in range(min(job.prefetch, layers)):
            yield Act("comm", place, k, "world", "_all_gather_base", 4096, blocking=False, hold=f"{direction}{layer}")
        for layer in range(layers):
            if layer + job.prefetch < layers:
                hold = f"{direction}{layer + job.prefetch}"
                yield Act("comm", place, k, "world", "_all_gather_base", 4096, blocking=False, hold=hold)
            yield Act("wait", place, hold=f"{direction}{layer}")
            yield Act("kernel", direction, k)
            if direction == "backward":
                yield Act("comm", place, k, "world", "_reduce_scatter_base", 4096, blocking=False, hold="grads")
    yield Act("wait", "backward", hold="grads")
    yield Act("comm", "norm", 0.001, "world", "all_reduce", 1)
    yield Act("sync", "norm.item")
    yield Act("kernel", "optimizer", k)
    if step % job.log_every == 0:
        yield Act("comm", "loss", 0.001, "world", "all_reduce", 1)
        yield Act("sync", "loss.item")


def _ddp(job: Job, step: int) -> Iterator[Act]:
    k = job.kernel_s
    yield Act("load", "load", 0.002)
    yield Act("comm", "buffers", 0.002, "world", "broadcast", 64, root=0)
    yield Act("kernel", "forward", k)
    for bucket in range(job.layers):
        yield Act("kernel", "backward", k)
        yield Act("comm", "backward", 0.005, "world", "all_reduce", 4096 + bucket, blocking=False, hold="grads")
    yield Act("wait", "backward", hold="grads")
    yield Act("kernel", "optimizer", k)
    if step % job.log_every == 0:
        yield Act("comm", "loss", 0.001, "world", "all_reduce", 1)
        yield Act("sync", "loss.item")
