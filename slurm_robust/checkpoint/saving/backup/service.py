"""What a persister has to do with other nodes: it keeps their ranks' copies, and has its own ranks' kept there."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.saving.backup.receiver import BackupImage, BackupReceiver, addresses
from slurm_robust.checkpoint.saving.backup.sender import Peer, Throttle
from slurm_robust.checkpoint.saving.persister.image_writer import ImageWriter
from slurm_robust.checkpoint.saving.shared import memory_budget, wire
from slurm_robust.checkpoint.saving.shared.image import SLOTS

if TYPE_CHECKING:
    from slurm_robust.checkpoint.saving.persister.main import Persister

_Key = tuple[str, int]
"""Where checkpoints go, and whose they are."""


class BackupService:
    """Answers what a node's ranks ask or say about others.

    Args:
        persister: Of this node.
    """

    def __init__(self, persister: Persister) -> None:
        self._persister = persister
        self._backups: dict[_Key, tuple[BackupImage, ImageWriter]] = {}
        """Of other nodes' ranks; the keeper writes one where its rank's own node is lost."""
        self.node = secrets.token_hex(8)
        """What this persister proves to be; a successor is given the number of the one before it."""
        self._listener: BackupReceiver | None = None
        self._throttle = Throttle(0)

    @property
    def keepers(self) -> list[ImageWriter]:
        """Of backups."""
        return [keeper for _, keeper in self._backups.values()]

    def answer(
        self, connection: socket.socket, message: dict[str, Any], directory: str, asking: ImageWriter | None
    ) -> None:
        """Do what a rank says; `asking` has its image.

        Raises:
            ValueError, KeyError, TypeError: it makes no sense.
            OSError: the rank is gone, or nobody can listen here.
        """
        kind = message["t"]
        fds: list[int] = []
        answer: dict[str, Any] = {"t": kind}
        if kind == "node":
            answer["node"] = self.node
        elif kind == "listen":
            answer |= self._listen(str(message["node"]), int(message["port"]))
        elif kind == "inventory":
            answer["ranks"] = self._inventory(directory)
        elif kind in ("image", "persist"):
            keeper = self._found(directory, int(message["of"]), backup=bool(message["backup"]))
            if kind == "persist":
                answer["done"] = keeper is not None and keeper.order(str(message["save_id"]))
            elif keeper is not None:
                fds = [keeper.image.fd]
        elif kind == "settle":
            self._settle(
                directory, set(message["own"]), set(message["backups"]), str(message["resumed"]), int(message["step"])
            )
        elif kind == "room":
            self._admit(message)
            key = directory, int(message["of"])
            answer["why"] = self._room(key, int(message["total_bytes"]), int(message["turn"]))
        elif kind == "fit":
            wanted = {(directory, int(rank)): int(size) for rank, size in message["rooms"]}
            answer["why"] = self._fit(wanted, str(message["whose"]))
        elif kind == "peers":
            if asking is None:
                raise ValueError("peers for a rank that has no memory here")
            self._throttle.bytes_per_s = float(message["bytes_per_s"])
            asking.send_to([_peer(message, told) for told in message["peers"]], self._throttle)
        else:
            raise ValueError(f"asked for {kind!r}")
        wire.send(connection, answer, fds)

    def _listen(self, node: str, port: int) -> dict[str, Any]:
        if self._listener is None:
            self.node = node or self.node
            try:
                self._listener = BackupReceiver(self._kept, self.node, port)
            except OSError as error:
                return {"why": f"nobody can listen on this node: {error}"}
        return {"node": self.node, "port": self._listener.port, "addresses": addresses()}

    def _admit(self, message: dict[str, Any]) -> None:
        if self._listener is not None:
            self._listener.admit(str(message["run"]), bytes.fromhex(message["secret"]))

    def _kept(self, key: _Key) -> BackupImage | None:
        found = self._backups.get(key)
        return found[0] if found is not None else None

    def _found(self, directory: str, rank: int, *, backup: bool) -> ImageWriter | None:
        if not backup:
            return self._persister.keepers.get((directory, rank))
        found = self._backups.get((directory, rank))
        return found[1] if found is not None else None

    def _inventory(self, directory: str) -> list[tuple[int, bool]]:
        """(rank, whether it is a backup) of all that is here for that folder of checkpoints."""
        own = [(rank, False) for where, rank in self._persister.keepers if where == directory]
        return own + [(rank, True) for where, rank in self._backups if where == directory]

    def _settle(self, directory: str, own: Collection[int], backups: Collection[int], resumed: str, step: int) -> None:
        """A new run knows who sits here: the memory of others goes, and copies that came after what it resumed.

        Args:
            directory: Of the checkpoints.
            own: Ranks that sit here now.
            backups: Ranks whose backups are to stand here.
            resumed: The save that the run has loaded from memory; empty where it has not.
            step: What it goes on from; -1 where it has loaded nothing.
        """
        keepers = self._persister.keepers
        for key in [key for key in keepers if key[0] == directory and key[1] not in own]:
            keepers.pop(key).drop()
        for key in [key for key in self._backups if key[0] == directory and key[1] not in backups]:
            self._drop(key)
        here = [keeper for key, keeper in keepers.items() if key[0] == directory]
        for sender in [sender for keeper in here for sender in keeper.senders]:
            sender.give_up()  # who keeps what is told anew
        for keeper in here:
            keeper.send_to((), self._throttle)
        here += [keeper for key, (_, keeper) in self._backups.items() if key[0] == directory]
        for image in (keeper.image for keeper in here):
            held = {slot: one[1] for slot in SLOTS if (one := image.held(slot)) is not None}
            has_it = any(note.save_id == resumed for note in held.values())
            for slot, note in held.items():
                # Copied last, it would be the newest and not all ranks have it; or it is of a way that was given up.
                if (has_it and note.save_id != resumed) or 0 <= step < note.step:
                    image.begin(slot)

    def _fit(self, rooms: Mapping[_Key, int], whose: str) -> str:
        """Whether memory can be spared for these backups; why not. What is there already is not counted twice."""
        there = {key: os.fstat(kept.image.fd).st_size for key, (kept, _) in self._backups.items() if key in rooms}
        more_bytes = sum(size for key, size in rooms.items() if there.get(key) != size)
        more_bytes -= sum(size for key, size in there.items() if rooms[key] != size)
        what = "two backups of each rank would take another"
        if more_bytes <= 0:
            return ""
        return memory_budget.refusal(more_bytes, memory_budget.rooms(), whose, what, memory_budget.UNASKED_SPARE_SHARE)

    def _room(self, key: _Key, total_bytes: int, turn: int = 0) -> str:
        """Have memory for that rank's first or second backup; why there is none, empty where there is."""
        if key in self._backups:
            kept, keeper = self._backups[key]
            if os.fstat(kept.image.fd).st_size == total_bytes:
                keeper.turn = turn
                return ""
            self._drop(key)
        try:
            fd = memory_budget.memory(total_bytes, f"rank {key[1]}", "its backup on another node takes")
        except CheckpointError as error:
            return error.what
        kept = BackupImage(fd)
        self._backups[key] = kept, ImageWriter(self._persister, fd, backup=kept.image, turn=turn)
        return ""

    def _drop(self, key: _Key) -> None:
        kept, keeper = self._backups.pop(key)
        with kept.lock:
            keeper.drop()


def _peer(message: dict[str, Any], told: dict[str, Any]) -> Peer:
    return Peer(
        str(told["name"]),
        str(told["node"]),
        tuple(map(str, told["addresses"])),
        int(told["port"]),
        str(message["run"]),
        bytes.fromhex(message["secret"]),
    )
