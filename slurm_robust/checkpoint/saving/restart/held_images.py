"""The shares of earlier saves that nodes still hold: images in their persisters, and files without a seal."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import xxhash

from slurm_robust.checkpoint.base import files
from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.saving.rank import backup_setup
from slurm_robust.checkpoint.saving.rank.persister_link import PersisterLink
from slurm_robust.checkpoint.saving.rank.save_plan import RankGroup
from slurm_robust.checkpoint.saving.restart import copy_choice
from slurm_robust.checkpoint.saving.restart.copy_choice import Choice, Share
from slurm_robust.checkpoint.saving.shared import local_files
from slurm_robust.checkpoint.saving.shared.file_writer import METADATA
from slurm_robust.checkpoint.saving.shared.image import SLOTS, Image
from slurm_robust.checkpoint.saving.shared.messages import AskInventory, Inventory, SaveOrdered, WriteSave

_ON_DISK = (copy_choice.LOCAL, copy_choice.SHARED)

_Key = tuple[int, bool]
"""A rank of the run that saved, and whether it is its backup."""


class HeldImages:
    """All shares that the nodes of a run hold; every rank makes one.

    `link` is the connection to this node's persister, None without one; `local` is the folder of these checkpoints on
    this node's own disk, empty without one.
    """

    def __init__(self, directory: Path, link: PersisterLink | None, ranks: RankGroup, local: str) -> None:
        self._link, self._ranks = link, ranks
        self._disks = [(Path(local), copy_choice.LOCAL)] if local else []
        if ranks.rank == 0:
            self._disks.append((directory, copy_choice.SHARED))
        self._images: dict[_Key, Image | None] = {}
        self.notes: list[str] = []
        """Messages for the user."""
        here: backup_setup.RankNode | None = None
        if link is not None:
            try:
                here = backup_setup.rank_node(link)
            except CheckpointError as error:
                self.notes.append(f"no memory of an earlier run: {error}")
        self._nodes: list[backup_setup.RankNode | None] = ranks.gather(here)
        mine = [] if here is None else self._sharing(ranks.rank)
        self.shares: list[Share] = []
        """The shares of all nodes."""
        for listed in ranks.gather(self._listed() if mine and mine[0] == ranks.rank else []):
            self.shares += listed

    def _sharing(self, rank: int) -> list[int]:
        """Return the ranks that share that rank's node."""
        mine = self._nodes[rank]
        return [other for other, one in enumerate(self._nodes) if one is not None and mine and one.node == mine.node]

    @property
    def _node_name(self) -> str:
        return mine.name if (mine := self._nodes[self._ranks.rank]) is not None else ""

    def reader(self, share: Share) -> int:
        """Return the rank that reads the share for others: ranks of its node take turns."""
        sharing = self._sharing(share.at)
        return sharing[share.rank % len(sharing)]

    def is_here(self, share: Share) -> bool:
        """Return whether this rank can read the share."""
        return share.at in self._sharing(self._ranks.rank)

    def _listed(self) -> list[Share]:
        assert self._link is not None
        found: list[Share] = []
        try:
            reply, _ = self._link.ask(AskInventory(), Inventory)
            for rank, backup in reply.ranks:
                found += self._of_image(rank, backup=backup)
        except CheckpointError as error:
            self.notes.append(f"no memory of an earlier run: {error}")
        return found + [share for disk, place in self._disks for share in self._of_disk(disk, place)]

    def _of_disk(self, disk: Path, place: str) -> list[Share]:
        found = []
        for one in local_files.written(disk):
            file = next((file for file in one.part.files if file.name != METADATA), None)
            assert one.part.note is not None
            found.append(
                Share(
                    note=one.part.note,
                    plan=one.part.plan,
                    world_size=one.part.world_size,
                    rank=one.part.rank,
                    file=file.name if file else "",
                    has_metadata=one.has_metadata,
                    place=place,
                    at=self._ranks.rank,
                    node=self._node_name,
                    where=str(one.folder),
                    digest=bytes.fromhex(file.xxh3_128) if file else b"",
                )
            )
        return found

    def _of_image(self, rank: int, *, backup: bool) -> list[Share]:
        image = self._image(rank, backup=backup)
        described = image.described() if image is not None else None
        if image is None or described is None:
            return []
        found = []
        for slot in SLOTS:
            held = image.held(slot)
            if held is None:
                continue
            number, digest = image.finished(slot)
            found.append(
                Share(
                    note=held[1],
                    plan=described.digest,
                    world_size=described.world_size,
                    rank=rank,
                    file=described.file,
                    has_metadata=bool(described.metadata_bytes),
                    place=copy_choice.BACKUP if backup else copy_choice.MEMORY,
                    at=self._ranks.rank,
                    node=self._node_name,
                    where=str(slot),
                    digest=digest if number == held[0] else b"",
                )
            )
        return found

    def _image(self, rank: int, *, backup: bool) -> Image | None:
        if (rank, backup) not in self._images:
            fd = self._link.image(rank, backup=backup) if self._link is not None else None
            self._images[rank, backup] = Image(fd) if fd is not None else None
        return self._images[rank, backup]

    def content(self, share: Share) -> memoryview:
        """Return the bytes of the share's file on this node. Raises CheckpointError if the file is gone."""
        if share.place in _ON_DISK:
            return self._mapped(Path(share.where) / share.file)
        image = self._image(share.rank, backup=share.place == copy_choice.BACKUP)
        described = image.described() if image is not None else None
        if image is None or described is None:
            raise CheckpointError(f"the memory of rank {share.rank} is gone")
        return image.slot(int(share.where))[: described.file_bytes]

    def metadata(self, share: Share) -> bytes:
        """DCP's `.metadata` beside it; it must be on this node. Raises CheckpointError if it is gone."""
        if share.place in _ON_DISK:
            try:
                found = (Path(share.where) / METADATA).read_bytes()
            except OSError as error:
                raise CheckpointError(f"{share.where}: {error}") from error
            if xxhash.xxh3_128_hexdigest(found) != share.plan:
                raise CheckpointError(f"{share.where}/{METADATA}: its bytes changed since they were written")
            return found
        image = self._image(share.rank, backup=share.place == copy_choice.BACKUP)
        if image is None:
            raise CheckpointError(f"the memory of rank {share.rank} is gone")
        return bytes(image.metadata)

    def wrong(self, choice: Choice) -> list[Share]:
        """Return shares that cannot be read, or whose bytes differ from the written ones; all ranks call it."""
        found: list[Share] = []
        for share in choice.shares:
            if self.reader(share) != self._ranks.rank:
                continue
            try:
                if share.file and any(share.digest) and self._digest(share) != share.digest:
                    found.append(share)
                elif share is choice.metadata:
                    self.metadata(share)
            except (CheckpointError, OSError):
                found.append(share)
        return [share for shares in self._ranks.gather(found) for share in shares]

    def _digest(self, share: Share) -> bytes:
        if share.place in _ON_DISK:
            return bytes.fromhex(files.digest(Path(share.where) / share.file))
        return xxhash.xxh3_128_digest(self.content(share))

    def _mapped(self, path: Path) -> memoryview:
        """Map a file whose digest was just read: its bytes are in the page cache, so a mapping needs no copy."""
        try:
            with path.open("rb") as opened:
                return memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path}: cannot be read: {error}") from error

    def order_writes(self, choice: Choice) -> None:
        """Order writes of shares that are not written otherwise: backups of lost ranks, shares that were never written.

        Raises:
            CheckpointError: no persister answers.
        """
        for share in choice.shares:
            if share.place in _ON_DISK:
                continue
            ordered = share.place == copy_choice.BACKUP or not any(share.digest)
            if ordered and self._link is not None and self.reader(share) == self._ranks.rank:
                backup = share.place == copy_choice.BACKUP
                request = WriteSave(of=share.rank, backup=backup, save_id=share.note.save_id)
                self._link.ask(request, SaveOrdered)

    def close(self) -> None:
        """Unmap all images."""
        for image in self._images.values():
            if image is not None:
                image.close()
                os.close(image.fd)
        self._images = {}
