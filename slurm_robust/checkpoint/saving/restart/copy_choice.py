"""Chooses the copies to resume from: the newest save of which every rank's share exists somewhere. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import NamedTuple

from slurm_robust.checkpoint.saving.shared.image import Note

MEMORY, BACKUP, LOCAL, SHARED = "memory", "backup", "local", "shared"
PLACES = (MEMORY, BACKUP, LOCAL, SHARED)
"""The places of a share, best first."""


class Share(NamedTuple):
    """One copy of a rank's complete share of a save.

    Attributes:
        note: The note of the save.
        plan: The digest of all ranks' plans.
        world_size: Ranks that saved together.
        rank: The rank of the share.
        file: Its file within the checkpoint, empty if it writes nothing.
        has_metadata: DCP's `.metadata` is beside it.
        place: One of `PLACES`.
        at: The rank that can read it, among the ranks that load now.
        node: The name of that rank's node.
        where: The slot or the folder that has it.
        digest: xxh3-128 of the file, empty if unknown.
    """

    note: Note
    plan: str
    world_size: int
    rank: int
    file: str
    has_metadata: bool
    place: str
    at: int
    node: str
    where: str
    digest: bytes


class Choice(NamedTuple):
    """A save, and the best share of each rank of it, in order of ranks."""

    note: Note
    shares: tuple[Share, ...]

    @property
    def metadata(self) -> Share:
        """The share whose `.metadata` is used."""
        return next(share for share in self.shares if share.has_metadata)

    @property
    def places(self) -> tuple[str, ...]:
        """The places of the shares, each once, best first."""
        return tuple(place for place in PLACES if any(share.place == place for share in self.shares))


def choose(shares: Iterable[Share], wrong: Collection[Share] = (), refused: Collection[str] = ()) -> Choice | None:
    """Return the newest save with every rank's share and DCP's `.metadata`; None if there is no such save.

    `shares` are all copies of all nodes, `wrong` the damaged ones among them, `refused` ids of saves not to use.
    """
    saves: dict[tuple[str, str, int], dict[int, list[Share]]] = {}
    for share in shares:
        if share in wrong or share.note.save_id in refused:
            continue
        save = saves.setdefault((share.note.save_id, share.plan, share.world_size), {})
        save.setdefault(share.rank, []).append(share)
    best: Choice | None = None
    for (_, _, world_size), by_rank in saves.items():
        if set(by_rank) != set(range(world_size)):
            continue
        taken = _taken(by_rank, world_size)
        if not any(share.has_metadata for share in taken):
            # Any copy of it will do, also one beside another copy of a share.
            spare = next((one for found in by_rank.values() for one in found if one.has_metadata), None)
            if spare is None:
                continue
            taken[spare.rank] = spare
        choice = Choice(taken[0].note, tuple(taken))
        if best is None or _age(choice.note) > _age(best.note):
            best = choice
    return best


def _taken(by_rank: dict[int, list[Share]], world_size: int) -> list[Share]:
    """Return the best share of each rank; of two equal ones (two backups), the one whose reader sends less so far."""
    given: Counter[int] = Counter()
    found = []
    for rank in range(world_size):
        best = min(by_rank[rank], key=lambda one: (*_preference(one), given[one.at], one.at))
        given[best.at] += best.place != MEMORY
        found.append(best)
    return found


def _preference(share: Share) -> tuple[int, bool]:
    return PLACES.index(share.place), not share.has_metadata


def _age(note: Note) -> tuple[int, float]:
    return note.step, note.saved_at_s


def description(choice: Choice) -> str:
    """Return a sentence about where each rank's share comes from."""
    parts = [
        f"rank{'s' if len(ranks) > 1 else ''} {_ranges(ranks)} from {where}"
        for where, ranks in _by_place(choice).items()
    ]
    return f"continues from step {choice.note.step}: {'; '.join(parts)}"


def _ranges(ranks: list[int]) -> str:
    """Return `[0, 1, 2, 5]` as `0-2,5`; the numbers come in order."""
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and parts[-1][-1] == rank - 1:
            parts[-1][1:] = [rank]
        else:
            parts.append([rank])
    return ",".join("-".join(map(str, part)) for part in parts)


def _by_place(choice: Choice) -> dict[str, list[int]]:
    """Description of each place → the ranks whose shares come from there."""
    found: dict[str, list[int]] = {}
    for share in choice.shares:
        words = {
            MEMORY: "memory", BACKUP: f"the backup on {share.node}", LOCAL: f"the disk of {share.node}",
            SHARED: "the shared file system",
        }  # fmt: skip
        found.setdefault(words[share.place], []).append(share.rank)
    return found
