"""Sets up backups: all ranks agree on which node keeps whose copies, reserve the memory, and tell their persisters."""

from __future__ import annotations

import functools
import os
import secrets
import socket
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch.distributed.tensor import DTensor

from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.saving.backup.placement import PlacementGrid, place
from slurm_robust.checkpoint.saving.rank.buffers import Buffers, Retention
from slurm_robust.checkpoint.saving.rank.persister_link import PersisterLink
from slurm_robust.checkpoint.saving.rank.save_plan import RankGroup, SavePlan
from slurm_robust.checkpoint.saving.shared import messages
from slurm_robust.checkpoint.saving.shared.image import MOST_BACKUPS
from slurm_robust.checkpoint.saving.shared.options import BackupOptions

_REMEDY = "Give the job more memory (--mem), or keep fewer backups: Checkpointer(backups=1), or 0"
_HOW_MANY = ("no backup is kept", "one backup of each rank is kept, not two")

Backups = tuple[tuple[int, ...], ...]
"""Rank → the ranks on whose nodes its backups are kept."""


class ResumedFrom(NamedTuple):
    """The start of a run: the id of a save in memory, empty for none; the step, -1 if nothing was loaded."""

    resumed: str = ""
    step: int = -1


class SetupOptions(NamedTuple):
    """The options that were asked for, and the save that this run continues from."""

    retention: Retention
    backups: BackupOptions
    resumed: ResumedFrom = ResumedFrom()


class RankNode(NamedTuple):
    """The node of a rank: the identity of its persister, its name, and whether an agent runs that persister."""

    node: str
    name: str
    by_agent: bool


class BackupEndpoint(NamedTuple):
    """The address at which a rank's persister listens for backups, and the memory that a backup of the rank takes."""

    port: int
    addresses: tuple[str, ...]
    image_bytes: int


def rank_node(link: PersisterLink) -> RankNode:
    """Return this rank's node. Raises CheckpointError if no persister answers."""
    reply, _ = link.ask(messages.AskNode(), messages.NodeIs)
    return RankNode(reply.node, os.environ.get("SLURMD_NODENAME") or socket.gethostname(), link.by_agent)


def axes(flat: Mapping[str, Any], world_size: int) -> dict[str, int]:
    """Return the parallel groups of the meshes of a state's tensors, fastest first; without meshes, one group."""
    meshes = [value.device_mesh for value in flat.values() if isinstance(value, DTensor)]
    mesh = max(meshes, key=lambda one: (one.size(), one.ndim), default=None)
    if mesh is None or mesh.mesh.flatten().tolist() != list(range(world_size)):
        return {"ranks": world_size}
    names = mesh.mesh_dim_names or tuple(f"dim{number}" for number in range(mesh.ndim))
    return dict(reversed(list(zip(names, mesh.mesh.shape, strict=True))))


def wanted(nodes: list[RankNode], options: BackupOptions) -> tuple[int, str]:
    """Return how many backups each rank gets, and why that is fewer than asked for. Pure."""
    count = len({one.node for one in nodes})
    if options.copies is None:
        return min(MOST_BACKUPS, count - 1) if all(one.by_agent for one in nodes) else 0, ""
    found = min(options.copies, count - 1)
    few = "all ranks are on one node" if count == 1 else "there are two nodes"
    return found, f"{_HOW_MANY[found]}: {few}" if found < options.copies else ""


def backups(nodes: list[RankNode], options: BackupOptions, groups: Mapping[str, int], copies: int) -> Backups:
    """Rank → the ranks on whose nodes its backups are kept; empty if no backups are kept. Pure.

    Raises:
        CheckpointError: the sizes of the layout do not multiply to the number of ranks.
    """
    if not copies:
        return ()
    numbers: dict[str, int] = {}
    node_of = [numbers.setdefault(one.node, len(numbers)) for one in nodes]
    try:
        placed = place(PlacementGrid(options.layout or groups, node_of=node_of), copies)
    except ValueError as error:
        remedy = "BackupOptions(layout=...) names sizes whose product is the number of ranks"
        raise CheckpointError(str(error), remedy) from None
    return placed.backups if placed is not None else ()


class BackupSetup(NamedTuple):
    """The buffers, which node keeps what, and why there are fewer backups than asked for; empty if there are not."""

    buffers: Buffers
    backups: Backups
    fewer: str


def arrange(
    link: PersisterLink, plan: SavePlan, ranks: RankGroup, options: SetupOptions, groups: Mapping[str, int]
) -> BackupSetup:
    """Reserve memory for this rank's copies and for backups on its node, and start sending; all ranks call it.

    `groups` are the parallel groups if `options` does not name them.

    Raises:
        CheckpointError: memory is short, or a persister does not answer; the same on all ranks.
    """
    collective = _Collective(ranks)
    nodes: list[RankNode] = collective.all(lambda: rank_node(link))
    here = _NodeMemory(link, collective, nodes, options.resumed)
    copies, fewer = wanted(nodes, options.backups)
    placed = backups(nodes, options.backups, groups, copies)
    here.release_others(placed)
    link.replayed = []
    made: list[Buffers] = []
    collective.one(lambda: made.append(Buffers(link, plan, ranks.world_size, options.retention)))
    collective.check()
    buffers = made[0]
    if not placed:
        return BackupSetup(buffers, placed, fewer)
    image_bytes = os.fstat(buffers.image.fd).st_size
    endpoints: list[BackupEndpoint] = collective.all(lambda: _listen(link, nodes[ranks.rank], image_bytes))
    secret: str = ranks.broadcast(secrets.token_hex(32))
    if copies == MOST_BACKUPS and options.backups.copies is None:
        try:
            here.check_fit(placed, endpoints)
            reserved = here.reserve(placed, endpoints, secret)
        except CheckpointError as error:
            copies, fewer = 1, f"{_HOW_MANY[1]}: {error}"
            placed = backups(nodes, options.backups, groups, copies)
            here.release_others(placed)
            reserved = here.reserve(placed, endpoints, secret)
    else:
        reserved = here.reserve(placed, endpoints, secret)
    peers = messages.SetPeers(
        peers=tuple(_address(nodes[other], endpoints[other]) for other in placed[ranks.rank]),
        bytes_per_s=options.backups.bytes_per_s,
        run=link.run,
        secret=secret,
    )
    collective.one(lambda: link.ask(peers, messages.PeersSet))
    collective.check()
    buffers.backups = copies
    listen = messages.Listen(node=nodes[ranks.rank].node, port=endpoints[ranks.rank].port)
    link.replayed = [
        (listen, messages.Listening),
        *((one, messages.BackupReserved) for one in reserved),
        (peers, messages.PeersSet),
    ]
    return BackupSetup(buffers, placed, fewer)


def _listen(link: PersisterLink, mine: RankNode, image_bytes: int) -> BackupEndpoint:
    reply, _ = link.ask(messages.Listen(node=mine.node, port=0), messages.Listening)
    if reply.why:
        raise CheckpointError(f"{mine.name}: {reply.why}", _REMEDY)
    return BackupEndpoint(reply.port, reply.addresses, image_bytes)


def _address(on: RankNode, endpoint: BackupEndpoint) -> messages.PeerAddress:
    return messages.PeerAddress(name=f"node {on.name}", node=on.node, port=endpoint.port, addresses=endpoint.addresses)


class _NodeMemory:
    """Tells this node's persister what memory to hold; all ranks call these methods."""

    def __init__(
        self, link: PersisterLink, collective: _Collective, nodes: list[RankNode], resumed: ResumedFrom
    ) -> None:
        self._link, self._collective, self._resumed = link, collective, resumed
        self._rank = collective.ranks.rank
        self._node = nodes[self._rank]
        self._own = [rank for rank, one in enumerate(nodes) if one.node == self._node.node]

    def _backed_up_here(self, placed: Backups) -> tuple[int, ...]:
        return tuple(rank for rank, others in enumerate(placed) if any(other in self._own for other in others))

    def release_others(self, placed: Backups) -> None:
        """Release all memory that this run does not need."""
        if self._own[0] == self._rank:
            kept = self._backed_up_here(placed)
            request = messages.ReleaseOthers(own=tuple(self._own), backups=kept, **self._resumed._asdict())
            self._collective.one(lambda: self._link.ask(request, messages.OthersReleased))
        self._collective.check()

    def check_fit(self, placed: Backups, endpoints: list[BackupEndpoint]) -> None:
        """Check whether all nodes have the memory; nothing is reserved. Raises CheckpointError if a node has not."""
        if self._own[0] == self._rank:
            rooms = tuple((rank, endpoints[rank].image_bytes) for rank in self._backed_up_here(placed))
            request = messages.CheckBackupsFit(rooms=rooms, whose=f"node {self._node.name}")
            self._collective.one(lambda: _granted(self._link.ask(request, messages.BackupsFit)[0]))
        self._collective.check()

    def reserve(self, placed: Backups, endpoints: list[BackupEndpoint], secret: str) -> list[messages.ReserveBackup]:
        """Reserve the memory; the requests for it. Raises CheckpointError if a node has too little memory."""
        requests = [
            messages.ReserveBackup(
                of=rank, turn=turn, total_bytes=endpoints[rank].image_bytes, run=self._link.run, secret=secret
            )
            for rank, others in enumerate(placed)
            for turn, other in enumerate(others)
            if other == self._rank
        ]
        for request in requests:
            self._collective.one(functools.partial(self._reserve, request))
        self._collective.check()
        return requests

    def _reserve(self, request: messages.ReserveBackup) -> None:
        _granted(self._link.ask(request, messages.BackupReserved)[0], _REMEDY)


def _granted(reply: messages.BackupsFit | messages.BackupReserved, remedy: str = "") -> None:
    if reply.why:
        raise CheckpointError(reply.why, remedy)


class _Collective:
    """Runs steps on all ranks: if one rank fails, all of them raise the same error."""

    def __init__(self, ranks: RankGroup) -> None:
        self.ranks = ranks
        self._failure = ""

    def one(self, step: Callable[[], Any]) -> Any:
        """Run a step on this rank, unless an earlier one failed."""
        if self._failure:
            return None
        try:
            return step()
        except CheckpointError as error:
            self._failure = str(error)
            return None

    def all(self, step: Callable[[], Any]) -> list[Any]:
        """Run a step on all ranks; each rank's result. Raises CheckpointError if a rank failed."""
        found = self.ranks.gather((self.one(step), self._failure))
        self._failure = ""
        failure = next((why for _, why in found if why), "")
        if failure:
            raise CheckpointError(failure)
        return [value for value, _ in found]

    def check(self) -> None:
        """Wait for all ranks. Raises CheckpointError if a rank failed in an earlier step."""
        self.all(lambda: None)
