"""What scripts/kill_saves.py kills, and when: the stages of a save and of a backup's transfer, and a seed's choices."""

from __future__ import annotations

import random
from typing import NamedTuple

STEPS = 6
TRAINER, WRITER, TRANSFER = "trainer", "writer", "transfer"
HERE, THERE = "here", "there"
OF_COPY = (
    "slot chosen", "slot void", "values copied", "half copied", "all copied", "slot complete", "persister told",
)  # fmt: skip
OF_WRITING = (
    "folder made", "file written", "file renamed", "part noted", "about to seal", "sealed", "cleaned up",
    "about to remove", "out of sight", "flush",
)  # fmt: skip
OF_PERSISTER = ("copy taken", *OF_WRITING, "pruned", "copy finished")
OF_SENDER = ("backup chunk sent", "backup kept")
OF_RECEIVER = ("backup chunk taken", "backup whole", "backup taken")
VICTIMS = ("rank", "persister", "agent", "node")
_FEWER = {"about to remove": 3, "out of sight": 3, "pruned": 4}
"""Times that they come at least; `flush` comes about ten times a save, and all others once a save."""
_FLUSHES = 24
_CHUNKS = 15
"""Of the largest share of a save; with `kill_point.CHUNK_BYTES` there are a few more."""


class Case(NamedTuple):
    """One round.

    Attributes:
        ranks: How many there are.
        nodes: Over how many nodes.
        keeper: Whose persister it is: `agent`, the ranks' `own`, or `none` (written in the step).
        victim: `rank`, `persister`, `agent`, or `node`.
        side: Which side of a save comes by the point: `trainer` or `writer`; `transfer` for a backup's sender or
            receiver.
        point: Where it is killed.
        nth: At which time that it comes there.
        on: The victim's node: `here`, where the point was reached, or `there`, on the other side of the transfer.
        lost: A node that is lost afterwards, too, seen from the victim's: `here`, `there`, or empty for none.
        flushed: The job's agents end then, as before a requeue, and the next training has nothing but files.
        shared: Saves from one that goes to the shared file system to the next, 100 for none; the others are in memory
            only.
        swapped: Ranks sit the other way around in the next training.
    """

    ranks: int
    nodes: int
    keeper: str
    victim: str
    side: str
    point: str
    nth: int
    on: str = HERE
    lost: str = ""
    flushed: bool = False
    shared: int = 1
    swapped: bool = False


def cases(seed: int, rounds: int, sides: tuple[str, ...] = (TRAINER, WRITER, TRANSFER)) -> list[Case]:
    """Every stage and victim of these sides comes at least once before any comes again."""
    chance = random.Random(seed)  # noqa: S311 (the same each time, on purpose)
    found: list[Case] = []
    while len(found) < rounds:
        lap = [(victim, TRAINER, point, HERE) for victim in VICTIMS for point in OF_COPY]
        lap += [(victim, WRITER, point, HERE) for victim in VICTIMS[1:] for point in OF_PERSISTER]
        lap += [("rank", WRITER, point, HERE) for point in OF_WRITING]
        of_transfer = (*OF_SENDER, *OF_RECEIVER)
        lap += [(victim, TRANSFER, point, on) for victim in VICTIMS for point in of_transfer for on in (HERE, THERE)]
        lap = [one for one in lap if one[1] in sides]
        chance.shuffle(lap)
        found += [_transfer(chance, *one) if one[1] == TRANSFER else _save(chance, *one) for one in lap]
    return found[:rounds]


def _save(chance: random.Random, victim: str, side: str, point: str, on: str) -> Case:
    ranks, nodes = chance.choice([(1, 1), (2, 1), (2, 2)])
    keeper = "agent" if victim == "agent" else chance.choice(("agent", "own"))
    keeper = "none" if (victim, side) == ("rank", WRITER) else keeper
    times = _FLUSHES if point == "flush" else _FEWER.get(point, STEPS - 1)
    return Case(ranks, nodes, keeper, victim, side, point, chance.randint(1, times), on)


def _transfer(chance: random.Random, victim: str, side: str, point: str, on: str) -> Case:
    ranks, nodes = chance.choice([(2, 2), (2, 2), (4, 2), (3, 3), (3, 3)])
    lost = ["", HERE, THERE]
    if victim == "node":  # it is lost itself; of three, with two backups each, another one may go, too
        lost = ["", THERE] if nodes > 2 else [""]
    times = STEPS * _CHUNKS if "chunk" in point else STEPS
    return Case(
        ranks,
        nodes,
        "agent",
        victim,
        side,
        point,
        chance.randint(1, times),
        on,
        lost=chance.choice(lost),
        flushed=chance.random() < 1 / 3,
        shared=chance.choice((1, 4, 100)),
        swapped=chance.random() < 1 / 2,
    )
