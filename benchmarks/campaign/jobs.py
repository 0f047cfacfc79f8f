"""Jobs as sites run them, drawn from a seed: sizes, parallel dimensions, schedules."""

from __future__ import annotations

import random

from campaign.layout import Layout
from campaign.programs import Job, Pause

SIZES = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
LARGE = 512
"""From here on steps are made of fewer operations: what a case costs grows with ranks times operations."""
MIN_NODES = 4


def draw_job(rng: random.Random, max_ranks: int, *, framework: str = "", pauses: tuple[Pause, ...] = ()) -> Job:
    """A job; all sizes are as likely, each twice the one before."""
    world = rng.choice([size for size in SIZES if size <= max_ranks])
    framework = framework or rng.choices(("megatron", "fsdp", "ddp"), (6, 2, 2))[0]
    per_node = rng.choice([n for n in (1, 2, 4, 8) if world // n >= MIN_NODES])
    if framework == "ddp":
        return Job("ddp", Layout(dp=world, per_node=per_node), rng.randint(1, 4), depth=0, pauses=pauses)
    small = world < LARGE
    depth = rng.choice((4, 16, 64, 256, 1024))
    if framework == "fsdp":
        layers, prefetch = rng.randint(2, 6 if small else 3), rng.choice((1, 2))
        return Job(
            "fsdp", Layout(dp=world, per_node=per_node), layers, depth=depth, prefetch=prefetch,
            log_every=rng.choice((1, 10)), pauses=pauses,
        )  # fmt: skip
    return _megatron(rng, world, per_node, depth, pauses, small=small)


def _megatron(
    rng: random.Random, world: int, per_node: int, depth: int, pauses: tuple[Pause, ...], *, small: bool
) -> Job:
    tp = rng.choice([n for n in (1, 2, 4, 8) if n <= max(per_node, 2)])
    cp = 2 if world // tp >= 32 and rng.random() < 0.15 else 1
    pp = rng.choice([n for n in (1, 2, 4, 8, 16) if tp * cp * n <= world])
    dp = world // (tp * cp * pp)
    moe = dp > 1 and rng.random() < 0.35
    ep = rng.choice([n for n in (2, 4, 8) if n <= dp]) if moe else 1
    chunks = rng.choice((1, 1, 2)) if pp > 1 else 1
    microbatches = pp if chunks > 1 or not small else min(16, pp * rng.choice((1, 2)))
    return Job(
        "megatron",
        Layout(tp=tp, cp=cp, dp=dp, pp=pp, ep=ep, per_node=per_node),
        layers=rng.choice((1, 2)) if small else 1,
        microbatches=microbatches,
        depth=depth,
        chunks=chunks,
        sequence_parallel=rng.random() < 0.5,
        moe=moe,
        moe_sync=rng.random() < 0.5,
        p2p_sync=rng.random() < 0.5,
        log_every=rng.choice((1, 10)),
        pauses=pauses,
    )


def draw_pause(rng: random.Random) -> Pause:
    """Something slow that is no fault."""
    place = rng.choice(("evaluate", "save", "compile"))
    who = "all" if place == "compile" else rng.choice(("all", "first", "replica"))
    if place == "compile":
        who = rng.choice(("all", "replica"))
    return Pause(place, 0 if place == "compile" else 1, rng.uniform(900, 3600), who, announced=rng.random() < 0.4)
