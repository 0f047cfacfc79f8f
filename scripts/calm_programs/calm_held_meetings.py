"""Held out: ranks that meet in other ways, are counted otherwise, or are not all needed."""

from __future__ import annotations

import mmap
import os
import socket
import struct
import sys
import time
from pathlib import Path

from calm_kit import (
    LAUNCH,
    RANK,
    SIZE,
    amid_training,
    among,
    by_sockets,
    connected,
    entry,
    listening,
    nap,
    program,
    receive,
    say,
    script,
    train,
)


@program(55, tasks=4)
def shared_memory_ranks() -> None:
    """Ranks meet in shared memory, which they ask each millisecond; no socket, no pipe, no library. One is late."""
    path = Path(f"/dev/shm/calm-{LAUNCH}-{os.environ.get('SLURM_JOB_ID', '0')}")
    with path.open("a+b") as file:
        os.ftruncate(file.fileno(), 4096)
        shared = mmap.mmap(file.fileno(), 4096)
    made = 0

    def meet() -> None:
        nonlocal made
        made += 1
        struct.pack_into("q", shared, 8 * RANK, made)
        while min(struct.unpack_from(f"{SIZE}q", shared)) < made:
            time.sleep(0.001)

    amid_training(lambda: nap(55), on=2, meet=meet)
    meet()
    if RANK == 0:
        path.unlink(missing_ok=True)


script(
    "slow-network", "held", "Both ranks stand in recv: eight bytes take most of a minute on a switch that is busy.", 56,
    "export CALM_LAUNCH=$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}\n$me slow-switch & $launch $me by-the-switch; wait",
)  # fmt: skip


@entry
def slow_switch() -> None:
    """Carry eight bytes each way, again and again; one of the messages is slow."""
    server = listening("switch")
    peers = [server.accept()[0] for _ in range(2)]
    count = 0
    while True:
        try:
            messages = [receive(peer, 8) for peer in peers]
            count += 1
            for place in range(8):
                if count == 40:
                    nap(7)
                peers[1].sendall(messages[0][place : place + 1])
                peers[0].sendall(messages[1][place : place + 1])
        except OSError:
            return


@entry
def by_the_switch() -> None:
    """Train; exchange eight bytes in each step."""
    peer = connected("switch")

    def meet() -> None:
        peer.sendall(bytes(8))
        receive(peer, 8)

    train(50, meet)


@program(60, tasks=4)
def hot_spares() -> None:
    """Two ranks train, one of them with a pause; two are spares that wait for an order that never comes."""
    if RANK > 1:
        order = receive(connected("spares"), 3)
        say(f"spare {RANK}: {order.decode()}")
        return
    spares: list[socket.socket] = []
    if RANK == 0:
        server = listening("spares")
        spares = [server.accept()[0] for _ in range(2)]
    amid_training(lambda: nap(60), meet=among("pair", (0, 1)))
    for spare in spares:
        spare.sendall(b"end")


script(
    "survives-a-lost-member", "held",
    "One of four members ends with 42 early (-K0 -W0); the others make a new group and train on without it.", 60,
    "$launch -K0 -W0 $me elastic-member", tasks=4, code=42,
)  # fmt: skip


@entry
def elastic_member() -> None:
    """Train as four; member 2 leaves; train as three, with a pause."""
    train(12, by_sockets())
    if RANK == 2:
        sys.exit(42)
    nap(10)
    meet = among("three", (0, 1, 3))
    train(20, meet)
    if RANK == 3:
        nap(60)
    train(10, meet)


script(
    "reversed-order", "held", "Ranks are counted from the last task to the first; the program's rank 2 is late.", 60,
    "$launch $mark bash -c \"export CALM_RANK=\\$((SLURM_NTASKS - 1 - SLURM_PROCID)); "
    "export RANK=\\$CALM_RANK WORLD_SIZE=\\$SLURM_NTASKS; exec $me late-rank-2\"", tasks=3,
)  # fmt: skip


@entry
def late_rank_2() -> None:
    """Train with torch; rank 2 pauses for a minute."""
    amid_training(lambda: nap(60), on=2)
