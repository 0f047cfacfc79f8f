"""The part of a persister that deals with other nodes: keeps backups of their ranks, and sends copies of its own."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from typing import Any

from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.saving.backup.receiver import BackupImage, BackupReceiver, addresses
from slurm_robust.checkpoint.saving.backup.sender import Peer, Throttle
from slurm_robust.checkpoint.saving.persister.image_writer import ImageWriter, SaveSealer
from slurm_robust.checkpoint.saving.shared import memory_budget, messages
from slurm_robust.checkpoint.saving.shared.image import SLOTS

_Key = tuple[str, int]
"""The folder of checkpoints, and the rank that an image is of."""


class BackupService:
    """Answers requests of a node's ranks that concern other nodes.

    `sealer` is the persister, `own` has the writers of this node's own ranks, the persister's.
    """

    def __init__(self, sealer: SaveSealer, own: dict[_Key, ImageWriter]) -> None:
        self._sealer, self._own = sealer, own
        self._backups: dict[_Key, tuple[BackupImage, ImageWriter]] = {}
        """The backups of other nodes' ranks; a writer writes a backup to files if the rank's own node is lost."""
        self.node = secrets.token_hex(8)
        """The identity that this persister proves to have; a successor is given that of the persister before it."""
        self._receiver: BackupReceiver | None = None
        self._throttle = Throttle(0)

    @property
    def writers(self) -> list[ImageWriter]:
        """Return the writers of the backups that this persister keeps for other nodes."""
        return [writer for _, writer in self._backups.values()]

    def answer(self, request: Any, asking: ImageWriter | None) -> tuple[messages.PersisterReply, list[int]]:
        """Carry out a request of a rank; `asking` writes that rank's image. The reply, and descriptors for it.

        Raises:
            ValueError: the request makes no sense.
        """
        fds: list[int] = []
        reply: messages.PersisterReply
        if isinstance(request, messages.AskNode):
            reply = messages.NodeIs(node=self.node)
        elif isinstance(request, messages.Listen):
            reply = self._listen(request)
        elif isinstance(request, messages.AskInventory):
            reply = self._inventory(request.directory)
        elif isinstance(request, messages.AskImage):
            writer = self._writer(request)
            reply, fds = messages.ImageIs(), [writer.image.fd] if writer is not None else []
        elif isinstance(request, messages.WriteSave):
            writer = self._writer(request)
            reply = messages.SaveOrdered(done=writer is not None and writer.order(request.save_id))
        elif isinstance(request, messages.ReleaseOthers):
            self._release_others(request)
            reply = messages.OthersReleased()
        elif isinstance(request, messages.ReserveBackup):
            if self._receiver is not None:
                self._receiver.admit(request.run, bytes.fromhex(request.secret))
            key = request.directory, request.of
            reply = messages.BackupReserved(why=self._reserve(key, request.total_bytes, request.turn))
        elif isinstance(request, messages.CheckBackupsFit):
            wanted = {(request.directory, rank): size for rank, size in request.rooms}
            reply = messages.BackupsFit(why=self._check_fit(wanted, request.whose))
        elif isinstance(request, messages.SetPeers):
            if asking is None:
                raise ValueError("peers for a rank that has no memory here")
            self._throttle.bytes_per_s = request.bytes_per_s
            secret = bytes.fromhex(request.secret)
            asking.send_to([Peer(peer, request.run, secret) for peer in request.peers], self._throttle)
            reply = messages.PeersSet()
        else:
            raise ValueError(f"no request: {request!r}")  # noqa: TRY004 (the rank is wrong, not the caller)
        return reply, fds

    def _listen(self, request: messages.Listen) -> messages.Listening:
        if self._receiver is None:
            self.node = request.node or self.node
            try:
                self._receiver = BackupReceiver(self._backup_image, self.node, request.port)
            except OSError as error:
                return messages.Listening(why=f"this node cannot listen for backups: {error}")
        return messages.Listening(node=self.node, port=self._receiver.port, addresses=tuple(addresses()))

    def _backup_image(self, key: _Key) -> BackupImage | None:
        found = self._backups.get(key)
        return found[0] if found is not None else None

    def _writer(self, request: messages.AskImage | messages.WriteSave) -> ImageWriter | None:
        key = request.directory, request.of
        if not request.backup:
            return self._own.get(key)
        found = self._backups.get(key)
        return found[1] if found is not None else None

    def _inventory(self, directory: str) -> messages.Inventory:
        own = [(rank, False) for where, rank in self._own if where == directory]
        return messages.Inventory(ranks=(*own, *((rank, True) for where, rank in self._backups if where == directory)))

    def _release_others(self, request: messages.ReleaseOthers) -> None:
        directory = request.directory
        for key in [key for key in self._own if key[0] == directory and key[1] not in request.own]:
            self._own.pop(key).drop()
        for key in [key for key in self._backups if key[0] == directory and key[1] not in request.backups]:
            self._drop(key)
        here = [writer for key, writer in self._own.items() if key[0] == directory]
        for sender in [sender for writer in here for sender in writer.senders]:
            sender.give_up()  # the ranks will name the peers again
        for writer in here:
            writer.send_to((), self._throttle)
        here += [writer for key, (_, writer) in self._backups.items() if key[0] == directory]
        for image in (writer.image for writer in here):
            held = {slot: one[1] for slot in SLOTS if (one := image.held(slot)) is not None}
            has_it = any(note.save_id == request.resumed for note in held.values())
            for slot, note in held.items():
                # A newer copy is incomplete (not all ranks have it), or belongs to a training that was rolled back.
                if (has_it and note.save_id != request.resumed) or 0 <= request.step < note.step:
                    image.begin(slot)

    def _check_fit(self, wanted: Mapping[_Key, int], whose: str) -> str:
        """Return why memory for these backups is not available; empty if it is. Memory in use is not counted twice."""
        reserved = {
            key: os.fstat(backup.image.fd).st_size for key, (backup, _) in self._backups.items() if key in wanted
        }
        more_bytes = sum(size for key, size in wanted.items() if reserved.get(key) != size)
        more_bytes -= sum(size for key, size in reserved.items() if wanted[key] != size)
        what = "two backups of each rank would take another"
        if more_bytes <= 0:
            return ""
        spare_share = memory_budget.UNASKED_SPARE_SHARE
        return memory_budget.refusal(more_bytes, memory_budget.limits(), whose, what, spare_share)

    def _reserve(self, key: _Key, total_bytes: int, turn: int = 0) -> str:
        """Reserve memory for that rank's first or second backup; why it was refused, empty if it is reserved."""
        if key in self._backups:
            backup, writer = self._backups[key]
            if os.fstat(backup.image.fd).st_size == total_bytes:
                writer.turn = turn
                return ""
            self._drop(key)
        try:
            fd = memory_budget.memory(total_bytes, f"rank {key[1]}", "its backup on another node takes")
        except CheckpointError as error:
            return error.what
        backup = BackupImage(fd)
        self._backups[key] = backup, ImageWriter(self._sealer, fd, backup=backup.image, turn=turn)
        return ""

    def _drop(self, key: _Key) -> None:
        backup, writer = self._backups.pop(key)
        with backup.lock:
            writer.drop()
