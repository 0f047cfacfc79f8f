"""Pipeline schedules as Megatron runs them: 1F1B, and interleaved model chunks with exchanges that overlap."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from campaign.parts import Act

if TYPE_CHECKING:
    from campaign.programs import Job


def loads(job: Job, rank: int) -> bool:
    """Whether this rank has a data loader: the first of each tensor-parallel group, on the first and last stage."""
    tp, _, _, stage = job.layout.place(rank)
    return tp == 0 and stage in (0, job.layout.pp - 1)


def _batch(job: Job, rank: int) -> Iterator[Act]:
    layout = job.layout
    _, cp, dp, stage = layout.place(rank)
    if stage not in (0, layout.pp - 1):
        return
    if loads(job, rank):
        yield Act("load", "load", 0.002)
    if layout.tp > 1:
        yield Act("comm", "tp.batch", 0.0005, "tp", "broadcast", 4096, root=layout.at(0, cp, dp, stage))


def _blocks(job: Job, direction: str) -> Iterator[Act]:
    k, forward = job.kernel_s, direction == "forward"
    for _ in range(job.layers):
        if job.sequence_parallel:
            yield Act("comm", "sp.gather" if forward else direction, k / 4, "tp", "_all_gather_base", 2048)
            yield Act("kernel", direction, k if forward else 2 * k)
            yield Act("comm", "sp.scatter" if forward else direction, k / 4, "tp", "_reduce_scatter_base", 2048)
        else:
            yield Act("kernel", direction, k if forward else 2 * k)
            yield Act("comm", "tp.forward" if forward else direction, k / 4, "tp", "all_reduce", 2048)
        if job.moe:
            if forward and job.moe_sync:
                yield Act("sync", "moe.sync")
            yield Act("comm", "moe.dispatch" if forward else direction, k / 2, "ep", "all_to_all", 1024)
            yield Act("kernel", direction, k)
            yield Act("comm", "moe.combine" if forward else direction, k / 2, "ep", "all_to_all", 1024)


def _exchange(job: Job, *peers: tuple[bool, int, str]) -> Iterator[Act]:
    """Send and receive in one batch. (sends, peer's rank, what it carries)."""
    if peers:
        yield Act("pair", "p2p", 0.001, "pp", peers=peers)
        if job.p2p_sync:
            yield Act("sync", "p2p.sync")


def one_f_one_b(job: Job, rank: int) -> Iterator[Act]:
    """Warm-up forwards, one forward and one backward in turn, and the backwards that are left."""
    layout = job.layout
    tp, cp, dp, stage = layout.place(rank)
    first, last = stage == 0, stage == layout.pp - 1
    before = layout.at(tp, cp, dp, stage - 1) if not first else -1
    after = layout.at(tp, cp, dp, stage + 1) if not last else -1
    warm = min(layout.pp - stage - 1, job.microbatches)
    steady = job.microbatches - warm

    def forward() -> Iterator[Act]:
        yield from _batch(job, rank)
        yield from _blocks(job, "forward")

    for _ in range(warm):
        if not first:
            yield from _exchange(job, (False, before, "f"))
        yield from forward()
        yield from _exchange(job, (True, after, "f"))
    if steady and not first:
        yield from _exchange(job, (False, before, "f"))
    for turn in range(steady):
        yield from forward()
        if not last:
            yield from _exchange(job, (True, after, "f"), (False, after, "b"))
        yield from _blocks(job, "backward")
        if not first:
            more = ((False, before, "f"),) if turn < steady - 1 else ()
            yield from _exchange(job, (True, before, "b"), *more)
    for _ in range(warm):
        yield from _exchange(job, (False, after, "b"))
        yield from _blocks(job, "backward")
        if not first:
            yield from _exchange(job, (True, before, "b"))


def interleaved(job: Job, rank: int) -> Iterator[Act]:
    """Several model chunks a stage; sends are left to themselves, receives awaited where they are used."""
    layout, chunks = job.layout, job.chunks
    tp, cp, dp, stage = layout.place(rank)
    pp = layout.pp
    total = job.microbatches * chunks
    warm = min((pp - stage - 1) * 2 + (chunks - 1) * pp, total)

    def neighbour(step: int) -> int:
        return layout.at(tp, cp, dp, (stage + step) % pp)

    def chunk_of(number: int, *, forward: bool) -> int:
        chunk = (number % (pp * chunks)) // pp
        return chunk if forward else chunks - 1 - chunk

    def run(number: int, *, forward: bool) -> Iterator[Act]:
        chunk = chunk_of(number, forward=forward)
        depth = chunk * pp + stage
        begins = depth == 0 if forward else depth == pp * chunks - 1
        ends = depth == pp * chunks - 1 if forward else depth == 0
        toward, sign = (1, "f") if forward else (-1, "b")
        if not begins:
            tag = f"{sign}{depth}"
            yield Act(
                "pair", "p2p.post", 0.001, "pp", peers=((False, neighbour(-toward), tag),), hold=tag, blocking=False
            )
            yield Act("wait", "p2p.wait", hold=tag)
        elif forward:
            yield from _batch(job, rank)
        yield from _blocks(job, "forward" if forward else "backward")
        if not ends:
            tag = f"{sign}{depth + toward}"
            yield Act(
                "pair", "p2p.post", 0.001, "pp", peers=((True, neighbour(toward), tag),), hold="sent", blocking=False
            )

    for number in range(warm):
        yield from run(number, forward=True)
    for number in range(total - warm):
        yield from run(warm + number, forward=True)
        yield from run(number, forward=False)
    for number in range(total - warm, total):
        yield from run(number, forward=False)
    yield Act("wait", "p2p.wait", hold="sent")
