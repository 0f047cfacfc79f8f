"""What this node still has of earlier saves, as those see it who load: the images that its persister holds."""

from __future__ import annotations

import os

import xxhash

from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.saving import backing, recovery
from slurm_robust.checkpoint.saving.image import SLOTS, Image
from slurm_robust.checkpoint.saving.link import Link
from slurm_robust.checkpoint.saving.planning import Ranks
from slurm_robust.checkpoint.saving.recovery import Choice, Share

_Key = tuple[int, bool]
"""A rank of the run that saved, and whether it is its backup."""


class Holdings:
    """All shares that the nodes of a run hold; every rank makes one.

    Args:
        link: To this node's persister; None for none.
        ranks: Those who load.
    """

    def __init__(self, link: Link | None, ranks: Ranks) -> None:
        self._link, self._ranks = link, ranks
        self._images: dict[_Key, Image | None] = {}
        self.notes: list[str] = []
        """What somebody should know."""
        here: backing.Seat | None = None
        if link is not None:
            try:
                here = backing.seat(link)
            except CheckpointError as error:
                self.notes.append(f"no memory of an earlier run: {error}")
        self._seats: list[backing.Seat | None] = ranks.gather(here)
        mine = [] if here is None else self._sharing(ranks.rank)
        self.shares: list[Share] = []
        """Everybody's."""
        for listed in ranks.gather(self._listed() if mine and mine[0] == ranks.rank else []):
            self.shares += listed

    def _sharing(self, rank: int) -> list[int]:
        """The ranks that share that rank's node."""
        seat = self._seats[rank]
        return [other for other, one in enumerate(self._seats) if one is not None and seat and one.node == seat.node]

    def reader(self, share: Share) -> int:
        """Which rank reads it for others: those of its node take turns."""
        sharing = self._sharing(share.at)
        return sharing[share.rank % len(sharing)]

    def is_here(self, share: Share) -> bool:
        """Whether this rank can read it."""
        return share.at in self._sharing(self._ranks.rank)

    def _listed(self) -> list[Share]:
        assert self._link is not None
        found: list[Share] = []
        try:
            answer, _ = self._link.ask({"t": "inventory"})
            for rank, backup in answer["ranks"]:
                found += self._of_image(int(rank), backup=bool(backup))
        except CheckpointError as error:
            self.notes.append(f"no memory of an earlier run: {error}")
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
                    place=recovery.BACKUP if backup else recovery.MEMORY,
                    at=self._ranks.rank,
                    node=seat.name if (seat := self._seats[self._ranks.rank]) is not None else "",
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
        """The bytes of its file; it must be here.

        Raises:
            CheckpointError: it is not any more.
        """
        image = self._image(share.rank, backup=share.place == recovery.BACKUP)
        described = image.described() if image is not None else None
        if image is None or described is None:
            raise CheckpointError(f"the memory of rank {share.rank} is gone")
        return image.slot(int(share.where))[: described.file_bytes]

    def metadata(self, share: Share) -> bytes:
        """DCP's `.metadata` that lies beside it; it must be here.

        Raises:
            CheckpointError: it is not any more.
        """
        image = self._image(share.rank, backup=share.place == recovery.BACKUP)
        if image is None:
            raise CheckpointError(f"the memory of rank {share.rank} is gone")
        return bytes(image.metadata)

    def wrong(self, choice: Choice) -> list[Share]:
        """Shares that cannot be read, or whose bytes are not those that were written; all ranks call it."""
        found: list[Share] = []
        for share in choice.shares:
            if self.reader(share) != self._ranks.rank or not share.file:
                continue
            try:
                content = self.content(share)
                if any(share.digest) and xxhash.xxh3_128_digest(content) != share.digest:
                    found.append(share)
            except CheckpointError:
                found.append(share)
        return [share for told in self._ranks.gather(found) for share in told]

    def write_down(self, choice: Choice) -> None:
        """Have those write a save who would not by themselves: a lost rank's backup, what was never written.

        Raises:
            CheckpointError: the persister is gone.
        """
        for share in choice.shares:
            ordered = share.place == recovery.BACKUP or not any(share.digest)
            if ordered and self._link is not None and self.reader(share) == self._ranks.rank:
                backup = share.place == recovery.BACKUP
                message = {"t": "persist", "of": share.rank, "backup": backup, "save_id": share.note.save_id}
                self._link.ask(message)

    def close(self) -> None:
        """Let all images go."""
        for image in self._images.values():
            if image is not None:
                image.close()
                os.close(image.fd)
        self._images = {}
