"""Who keeps whose backup: the ranks find out who sits where, take their memory, and tell their persisters."""

from __future__ import annotations

import functools
import os
import secrets
import socket
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch.distributed.tensor import DTensor

from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.saving.backup.placement import ParallelLayout, place
from slurm_robust.checkpoint.saving.rank.buffers import Buffers, Retention
from slurm_robust.checkpoint.saving.rank.persister_link import PersisterLink
from slurm_robust.checkpoint.saving.rank.save_plan import RankGroup, SavePlan
from slurm_robust.checkpoint.saving.shared.image import MOST_BACKUPS

_REMEDY = "Give the job more memory (--mem), or keep fewer backups: Checkpointer(backups=1), or 0"
_HOW_MANY = ("no backup is kept", "one backup of each rank is kept, not two")

Backups = tuple[tuple[int, ...], ...]
"""Rank → the ranks on whose nodes its copies are kept, too."""


class SetupOptions(NamedTuple):
    """What was asked for.

    Attributes:
        retention: What stays.
        backups: Of each rank, 0 to 2; None: as many as there are other nodes and memory for, where the agents of a
            watch step keep the buffers.
        layout: Parallel groups, name → size, the fastest first; None: as the state's tensors tell.
        bytes_per_s: Of a node, at most.
    """

    retention: Retention
    backups: int | None
    layout: Mapping[str, int] | None
    bytes_per_s: float


def asked(backups: int | None) -> int | None:
    """What may be asked for.

    Raises:
        ValueError: another number of backups.
    """
    if backups not in (None, *range(MOST_BACKUPS + 1)):
        raise ValueError(f"backups is {backups!r}: 0, 1 or 2 of each rank, or None: as many as fit")
    return backups


class ResumedFrom(NamedTuple):
    """What a run goes on from: the id of a save in memory, empty for none; the step, -1 where nothing was loaded."""

    resumed: str = ""
    step: int = -1


class RankNode(NamedTuple):
    """Where a rank sits; `node` is its persister's number."""

    node: str
    name: str
    by_agent: bool


class BackupEndpoint(NamedTuple):
    """Where a rank's persister can be called, and how much memory a backup of that rank takes."""

    port: int
    addresses: tuple[str, ...]
    image_bytes: int


def seat(link: PersisterLink) -> RankNode:
    """This rank's.

    Raises:
        CheckpointError: the persister is gone.
    """
    answer, _ = link.ask({"t": "node"})
    return RankNode(str(answer["node"]), os.environ.get("SLURMD_NODENAME") or socket.gethostname(), link.by_agent)


def axes(flat: Mapping[str, Any], world_size: int) -> dict[str, int]:
    """The parallel groups that a state's tensors tell of, the fastest first; without any, all are one group."""
    meshes = [value.device_mesh for value in flat.values() if isinstance(value, DTensor)]
    mesh = max(meshes, key=lambda one: (one.size(), one.ndim), default=None)
    if mesh is None or mesh.mesh.flatten().tolist() != list(range(world_size)):
        return {"ranks": world_size}
    names = mesh.mesh_dim_names or tuple(f"dim{number}" for number in range(mesh.ndim))
    return dict(reversed(list(zip(names, mesh.mesh.shape, strict=True))))


def wanted(seats: list[RankNode], wish: SetupOptions) -> tuple[int, str]:
    """How many backups each rank is to have, and why they are fewer than was asked for. Pure."""
    nodes = len({one.node for one in seats})
    if wish.backups is None:
        return min(MOST_BACKUPS, nodes - 1) if all(one.by_agent for one in seats) else 0, ""
    most = wish.backups
    found = min(most, nodes - 1)
    few = "all ranks are on one node" if nodes == 1 else "there are two nodes"
    return found, f"{_HOW_MANY[found]}: {few}" if found < most else ""


def backups(seats: list[RankNode], wish: SetupOptions, groups: Mapping[str, int], copies: int) -> Backups:
    """Rank → the ranks on whose nodes it is kept, too; empty where no backups are kept. Pure.

    Raises:
        CheckpointError: the layout is not one of these ranks.
    """
    if not copies:
        return ()
    numbers: dict[str, int] = {}
    node_of = [numbers.setdefault(one.node, len(numbers)) for one in seats]
    try:
        placed = place(ParallelLayout(wish.layout or groups, node_of=node_of), copies)
    except ValueError as error:
        raise CheckpointError(str(error), "Checkpointer(layout=...) names sizes whose product is all ranks") from None
    return placed.backups if placed is not None else ()


class BackupSetup(NamedTuple):
    """The buffers, who keeps what, and why that are fewer backups than were asked for; empty where they are not."""

    buffers: Buffers
    backups: Backups
    fewer: str


def arrange(
    link: PersisterLink,
    plan: SavePlan,
    ranks: RankGroup,
    wish: SetupOptions,
    *,
    groups: Mapping[str, int],
    resumed: ResumedFrom,
) -> BackupSetup:
    """Take memory for this rank's copies and for those that its node keeps, and have them sent; all ranks call it.

    Args:
        link: To this node's persister.
        plan: This rank's share.
        ranks: Who saves together.
        wish: What was asked for.
        groups: Where `wish` does not tell the parallel groups.
        resumed: What this run goes on from.

    Raises:
        CheckpointError: it does not fit, or nobody can be reached; the same on all ranks.
    """
    together = _AllRanks(ranks)
    seats: list[RankNode] = together.all(lambda: seat(link))
    here = _NodeMemory(link, together, seats, resumed)
    copies, fewer = wanted(seats, wish)
    placed = backups(seats, wish, groups, copies)
    here.settle(placed)
    link.standing = []
    found: list[Buffers] = []
    together.one(lambda: found.append(Buffers(link, plan, ranks.world_size, wish.retention)))
    together.meet()
    buffers = found[0]
    if not placed:
        return BackupSetup(buffers, placed, fewer)
    calls: list[BackupEndpoint] = together.all(
        lambda: _listen(link, seats[ranks.rank], os.fstat(buffers.image.fd).st_size)
    )
    run = {"run": link.run, "secret": ranks.told(secrets.token_hex(32))}
    if copies == MOST_BACKUPS and wish.backups is None:
        try:
            here.fit(placed, calls)
            rooms = here.rooms(placed, calls, run)
        except CheckpointError as error:
            copies, fewer = 1, f"{_HOW_MANY[1]}: {error}"
            placed = backups(seats, wish, groups, copies)
            here.settle(placed)
            rooms = here.rooms(placed, calls, run)
    else:
        rooms = here.rooms(placed, calls, run)
    peers = [_peer(seats[other], calls[other]) for other in placed[ranks.rank]]
    told = {"t": "peers", "peers": peers, "bytes_per_s": wish.bytes_per_s, **run}
    together.one(lambda: link.ask(told))
    together.meet()
    buffers.backups = copies
    listen = {"t": "listen", "node": seats[ranks.rank].node, "port": calls[ranks.rank].port}
    link.standing = [listen, *rooms, told]
    return BackupSetup(buffers, placed, fewer)


def _listen(link: PersisterLink, mine: RankNode, image_bytes: int) -> BackupEndpoint:
    answer, _ = link.ask({"t": "listen", "node": mine.node, "port": 0})
    if "why" in answer:
        raise CheckpointError(f"{mine.name}: {answer['why']}", _REMEDY)
    return BackupEndpoint(int(answer["port"]), tuple(map(str, answer["addresses"])), image_bytes)


def _peer(keeps: RankNode, call: BackupEndpoint) -> dict[str, Any]:
    return {"name": f"node {keeps.name}", "node": keeps.node, "port": call.port, "addresses": list(call.addresses)}


class _NodeMemory:
    """What a node's persister is told of the memory that it is to have; all ranks call these methods."""

    def __init__(self, link: PersisterLink, together: _AllRanks, seats: list[RankNode], resumed: ResumedFrom) -> None:
        self._link, self._together, self._resumed = link, together, resumed
        self._rank = together.ranks.rank
        self._seat = seats[self._rank]
        self._own = [rank for rank, one in enumerate(seats) if one.node == self._seat.node]

    def _kept(self, placed: Backups) -> list[int]:
        return [rank for rank, others in enumerate(placed) if any(other in self._own for other in others)]

    def settle(self, placed: Backups) -> None:
        """Let all memory go that nobody needs any more."""
        if self._own[0] == self._rank:
            told = {"own": self._own, "backups": self._kept(placed), **self._resumed._asdict()}
            self._together.one(lambda: self._link.ask({"t": "settle", **told}))
        self._together.meet()

    def fit(self, placed: Backups, calls: list[BackupEndpoint]) -> None:
        """Ask whether all nodes have the memory; nothing is taken.

        Raises:
            CheckpointError: one has not.
        """
        if self._own[0] == self._rank:
            rooms = [(rank, calls[rank].image_bytes) for rank in self._kept(placed)]
            told = {"t": "fit", "rooms": rooms, "whose": f"node {self._seat.name}"}
            self._together.one(lambda: _yes(self._link, told))
        self._together.meet()

    def rooms(self, placed: Backups, calls: list[BackupEndpoint], run: Mapping[str, str]) -> list[dict[str, Any]]:
        """Take the memory; what the persister was told for it.

        Raises:
            CheckpointError: it does not fit on some node.
        """
        rooms = [
            {"t": "room", "of": rank, "turn": turn, "total_bytes": calls[rank].image_bytes, **run}
            for rank, others in enumerate(placed)
            for turn, other in enumerate(others)
            if other == self._rank
        ]
        for room in rooms:
            self._together.one(functools.partial(_yes, self._link, room, _REMEDY))
        self._together.meet()
        return rooms


def _yes(link: PersisterLink, message: dict[str, Any], remedy: str = "") -> None:
    answer, _ = link.ask(message)
    if answer["why"]:
        raise CheckpointError(str(answer["why"]), remedy)


class _AllRanks:
    """What one rank cannot do, none does."""

    def __init__(self, ranks: RankGroup) -> None:
        self.ranks = ranks
        self._failure = ""

    def one(self, what: Callable[[], Any]) -> Any:
        """Do it, unless something went wrong before."""
        if self._failure:
            return None
        try:
            return what()
        except CheckpointError as error:
            self._failure = str(error)
            return None

    def all(self, what: Callable[[], Any]) -> list[Any]:
        """Do it on all ranks; what each came to."""
        found = self.ranks.gather((self.one(what), self._failure))
        self._failure = ""
        failure = next((why for _, why in found if why), "")
        if failure:
            raise CheckpointError(failure)
        return [value for value, _ in found]

    def meet(self) -> None:
        """All ranks are through with what came before.

        Raises:
            CheckpointError: one is not.
        """
        self.all(lambda: None)
