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
from slurm_robust.checkpoint.saving.buffers import Buffers, Retention
from slurm_robust.checkpoint.saving.link import Link
from slurm_robust.checkpoint.saving.placement import Layout, place
from slurm_robust.checkpoint.saving.planning import Plan, Ranks

_REMEDY = "Give the job more memory (--mem), or keep no backups: Checkpointer(backup=False)"


class Wish(NamedTuple):
    """What was asked for.

    Attributes:
        retention: What stays.
        backup: None: where the agents of a watch step keep the buffers of two nodes or more.
        layout: Parallel groups, name → size, the fastest first; None: as the state's tensors tell.
        bytes_per_s: Of a node, at most.
    """

    retention: Retention
    backup: bool | None
    layout: Mapping[str, int] | None
    bytes_per_s: float


class Resumed(NamedTuple):
    """What a run goes on from: the id of a save in memory, empty for none; the step, -1 where nothing was loaded."""

    resumed: str = ""
    step: int = -1


class Seat(NamedTuple):
    """Where a rank sits; `node` is its persister's number."""

    node: str
    name: str
    by_agent: bool


class Call(NamedTuple):
    """Where a node's persister can be called."""

    port: int
    addresses: tuple[str, ...]


def seat(link: Link) -> Seat:
    """This rank's.

    Raises:
        CheckpointError: the persister is gone.
    """
    answer, _ = link.ask({"t": "node"})
    return Seat(str(answer["node"]), os.environ.get("SLURMD_NODENAME") or socket.gethostname(), link.by_agent)


def axes(flat: Mapping[str, Any], world_size: int) -> dict[str, int]:
    """The parallel groups that a state's tensors tell of, the fastest first; without any, all are one group."""
    meshes = [value.device_mesh for value in flat.values() if isinstance(value, DTensor)]
    mesh = max(meshes, key=lambda one: (one.size(), one.ndim), default=None)
    if mesh is None or mesh.mesh.flatten().tolist() != list(range(world_size)):
        return {"ranks": world_size}
    names = mesh.mesh_dim_names or tuple(f"dim{number}" for number in range(mesh.ndim))
    return dict(reversed(list(zip(names, mesh.mesh.shape, strict=True))))


def backups(seats: list[Seat], wish: Wish, groups: Mapping[str, int]) -> tuple[int, ...]:
    """Rank → the rank on whose node it is kept, too; empty where no backups are kept. Pure.

    Raises:
        CheckpointError: the layout is not one of these ranks.
    """
    numbers: dict[str, int] = {}
    node_of = [numbers.setdefault(one.node, len(numbers)) for one in seats]
    wanted = wish.backup if wish.backup is not None else all(one.by_agent for one in seats)
    if not wanted or len(numbers) < 2:
        return ()
    try:
        placed = place(Layout(wish.layout or groups, node_of=node_of))
    except ValueError as error:
        raise CheckpointError(str(error), "Checkpointer(layout=...) names sizes whose product is all ranks") from None
    return tuple(other for (other,) in placed.backups) if placed is not None else ()


class Arranged(NamedTuple):
    """The buffers, and rank → the rank on whose node it is kept."""

    buffers: Buffers
    backup: tuple[int, ...]


def arrange(
    link: Link, plan: Plan, ranks: Ranks, wish: Wish, *, groups: Mapping[str, int], resumed: Resumed
) -> Arranged:
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
    together = _Together(ranks)
    seats: list[Seat] = together.all(lambda: seat(link))
    backup = backups(seats, wish, groups)
    mine = seats[ranks.rank].node
    own = [rank for rank, one in enumerate(seats) if one.node == mine]
    here = [rank for rank, other in enumerate(backup) if other in own]
    if own[0] == ranks.rank:
        together.one(lambda: link.ask({"t": "settle", "own": own, "backups": here, **resumed._asdict()}))
    together.meet()
    link.standing = []
    found: list[Buffers] = []
    together.one(lambda: found.append(Buffers(link, plan, ranks.world_size, wish.retention)))
    together.meet()
    arranged = Arranged(found[0], backup)
    if backup:
        _back_up(link, together, seats, arranged, wish)
    return arranged


def _back_up(link: Link, together: _Together, seats: list[Seat], arranged: Arranged, wish: Wish) -> None:
    buffers, backup = arranged
    ranks, run = together.ranks, {"run": link.run, "secret": together.ranks.told(secrets.token_hex(32))}
    calls: list[tuple[Call, int]] = together.all(
        lambda: (_listen(link, seats[ranks.rank]), os.fstat(buffers.image.fd).st_size)
    )
    listen = {"t": "listen", "node": seats[ranks.rank].node, "port": calls[ranks.rank][0].port}
    rooms = [
        {"t": "room", "of": rank, "total_bytes": calls[rank][1], **run}
        for rank, other in enumerate(backup)
        if other == ranks.rank
    ]
    for room in rooms:
        together.one(functools.partial(_room, link, room))
    together.meet()
    other = backup[ranks.rank]
    peer = {
        "t": "peer", "name": f"node {seats[other].name}", "node": seats[other].node, "port": calls[other][0].port,
        "addresses": list(calls[other][0].addresses), "bytes_per_s": wish.bytes_per_s, **run,
    }  # fmt: skip
    together.one(lambda: link.ask(peer))
    together.meet()
    buffers.backed_up = True
    link.standing = [listen, *rooms, peer]


def _listen(link: Link, mine: Seat) -> Call:
    answer, _ = link.ask({"t": "listen", "node": mine.node, "port": 0})
    if "why" in answer:
        raise CheckpointError(f"{mine.name}: {answer['why']}", _REMEDY)
    return Call(int(answer["port"]), tuple(map(str, answer["addresses"])))


def _room(link: Link, room: dict[str, Any]) -> None:
    answer, _ = link.ask(room)
    if answer["why"]:
        raise CheckpointError(str(answer["why"]), _REMEDY)


class _Together:
    """What one rank cannot do, none does."""

    def __init__(self, ranks: Ranks) -> None:
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
