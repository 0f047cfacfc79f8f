"""The image: a rank's checkpoint memory. A header, constant data, and two slots that are written alternately.

    0          magic, sizes
    1024       slot 0: number, length and CRC of its note, the note (JSON)
    2048       slot 1
    3072       written by the persister: number and outcome of each slot
    3584       sent to the nodes that keep this rank's backups: for each backup, number of each slot
    4096       the description (JSON), then DCP's `.metadata` if this rank keeps it
    …          slot 0, slot 1, each at a multiple of 2 MiB

A slot is *complete* if its number is not 0 and its note matches its CRC. A copy sets the number to 0 first, and to the
next number last, so that a copy that was interrupted by a kill never counts as complete.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from typing import NamedTuple

import msgspec

PAGE_BYTES = 4096
_HUGE_BYTES = 2 << 20
_MAGIC = b"srobckp1"
_HEAD = struct.Struct("<8s4Q")
_NUMBER = struct.Struct("<Q")
_NOTE_HEAD = struct.Struct("<2L")
_SLOTS_AT = (1024, 2048)
_NOTE_MOST_BYTES = 1024 - 16
_DONE_AT = 3072
_DONE = struct.Struct("<2Q16s")
_SENT_AT = 3584
SLOTS = (0, 1)
MOST_BACKUPS = 2


class Note(msgspec.Struct, frozen=True):
    """Describes the copy in a slot; `save_id` is the same on all ranks of one save, and unique to it.

    It is to be written to `tiers`, out of `tiers.TIERS`.
    """

    save_id: str
    step: int
    folder: str
    saved_at_s: float
    tiers: tuple[str, ...] = ("shared",)


class ImageDescription(msgspec.Struct, frozen=True, kw_only=True):
    """The description of an image.

    Attributes:
        directory: The folder in which checkpoints are written.
        rank: The rank that the image belongs to.
        world_size: Ranks that save together.
        file: This rank's file within a checkpoint; empty if it writes nothing.
        file_bytes: The size of that file.
        metadata_bytes: The size of DCP's `.metadata`, 0 if this rank keeps none.
        digest: The digest of all ranks' plans: images with the same digest can be loaded together.
        keep: Sealed checkpoints to keep, 0 for all.
        local: The folder of these checkpoints on the node's own disk; empty for none.
        keep_local: Saves to keep there, beside those that other ranks may still be writing; 0 for all.
    """

    directory: str
    rank: int
    world_size: int
    file: str
    file_bytes: int
    metadata_bytes: int
    digest: str
    keep: int = 0
    local: str = ""
    keep_local: int = 0


class ImageSizes(NamedTuple):
    """The sizes of an image's parts."""

    static_bytes: int
    slot_bytes: int

    @property
    def slots_at(self) -> int:
        """Where slot 0 begins, in bytes."""
        return _up(PAGE_BYTES + self.static_bytes, _HUGE_BYTES)

    @property
    def total_bytes(self) -> int:
        """The size of the whole image."""
        return self.slots_at + len(SLOTS) * self.slot_bytes


def _up(value: int, step: int) -> int:
    return -(-value // step) * step


def sizes(static_bytes: int, file_bytes: int) -> ImageSizes:
    """Return the sizes of an image for a file of so many bytes."""
    small = file_bytes < _HUGE_BYTES
    return ImageSizes(_up(static_bytes, PAGE_BYTES), _up(file_bytes, PAGE_BYTES if small else _HUGE_BYTES))


class Image:
    """A mapped image; `fd` stays the caller's, and must be open as long as it is to be passed on."""

    def __init__(self, fd: int, *, populate: bool = False) -> None:
        self.fd = fd
        flags = mmap.MAP_SHARED | (getattr(mmap, "MAP_POPULATE", 0) if populate else 0)
        self.map = mmap.mmap(fd, os.fstat(fd).st_size, flags)
        self.view = memoryview(self.map)

    def close(self) -> None:
        """Unmap it; existing views and tensors of it keep it mapped."""
        self.view.release()
        try:
            self.map.close()
        except BufferError:
            return

    # -- constant data -----------------------------------------------------------------------------------------

    def describe(self, made: ImageSizes, description: ImageDescription, metadata: bytes) -> None:
        """Write the constant data; empties the slots."""
        for at in _SLOTS_AT:
            _NUMBER.pack_into(self.view, at, 0)
        _DONE.pack_into(self.view, _DONE_AT, 0, 0, b"")
        _DONE.pack_into(self.view, _DONE_AT + _DONE.size, 0, 0, b"")
        for backup in range(MOST_BACKUPS):
            for slot in SLOTS:
                self.mark_sent(slot, 0, backup)
        text = msgspec.json.encode(description)
        self.view[PAGE_BYTES : PAGE_BYTES + len(text)] = text
        at = PAGE_BYTES + len(text)
        self.view[at : at + len(metadata)] = metadata
        _HEAD.pack_into(self.view, 0, _MAGIC, *made, len(text), len(metadata))

    def described(self) -> ImageDescription | None:
        """Return the image's description; None if none was written yet."""
        magic, *_, text_bytes, _ = _HEAD.unpack_from(self.view, 0)
        if magic != _MAGIC:
            return None
        try:
            return msgspec.json.decode(self.view[PAGE_BYTES : PAGE_BYTES + text_bytes], type=ImageDescription)
        except msgspec.MsgspecError:
            return None

    @property
    def static(self) -> tuple[bytes, memoryview]:
        """The description as JSON text, and the metadata: with them another image becomes a backup of this one."""
        *_, text_bytes, _ = _HEAD.unpack_from(self.view, 0)
        return bytes(self.view[PAGE_BYTES : PAGE_BYTES + text_bytes]), self.metadata

    @property
    def metadata(self) -> memoryview:
        """DCP's `.metadata`, empty if this rank keeps none."""
        *_, text_bytes, metadata_bytes = _HEAD.unpack_from(self.view, 0)
        at = PAGE_BYTES + text_bytes
        return self.view[at : at + metadata_bytes]

    @property
    def sizes(self) -> ImageSizes:
        """The sizes of its parts."""
        _, static_bytes, slot_bytes, _, _ = _HEAD.unpack_from(self.view, 0)
        return ImageSizes(static_bytes, slot_bytes)

    def slot(self, number: int) -> memoryview:
        """Return the bytes of a slot."""
        made = self.sizes
        at = made.slots_at + number * made.slot_bytes
        return self.view[at : at + made.slot_bytes]

    @property
    def slots(self) -> memoryview:
        """The bytes of both."""
        return self.view[self.sizes.slots_at :]

    # -- copies ------------------------------------------------------------------------------------------------

    def begin(self, slot: int) -> None:
        """Invalidate the slot's copy."""
        _NUMBER.pack_into(self.view, _SLOTS_AT[slot], 0)

    def commit(self, slot: int, number: int, note: Note) -> None:
        """Mark the slot as complete, as copy `number` (from 1 on). Raises ValueError if the note is too long."""
        text = msgspec.json.encode(note)
        if len(text) > _NOTE_MOST_BYTES - _NOTE_HEAD.size:
            raise ValueError(f"a note of {len(text)} bytes")
        at = _SLOTS_AT[slot] + _NUMBER.size
        crc = zlib.crc32(text, zlib.crc32(_NUMBER.pack(number)))
        self.view[at + _NOTE_HEAD.size : at + _NOTE_HEAD.size + len(text)] = text
        _NOTE_HEAD.pack_into(self.view, at, len(text), crc)
        _NUMBER.pack_into(self.view, _SLOTS_AT[slot], number)

    def held(self, slot: int) -> tuple[int, Note] | None:
        """Number and note of a complete slot; None if it is empty or incomplete."""
        at = _SLOTS_AT[slot]
        (number,) = _NUMBER.unpack_from(self.view, at)
        length, crc = _NOTE_HEAD.unpack_from(self.view, at + _NUMBER.size)
        if not number or length > _NOTE_MOST_BYTES - _NOTE_HEAD.size:
            return None
        start = at + _NUMBER.size + _NOTE_HEAD.size
        text = bytes(self.view[start : start + length])
        if zlib.crc32(text, zlib.crc32(_NUMBER.pack(number))) != crc or _NUMBER.unpack_from(self.view, at)[0] != number:
            return None
        try:
            return number, msgspec.json.decode(text, type=Note)
        except msgspec.MsgspecError:
            return None

    def newest(self) -> int:
        """Return the highest number of a complete slot, 0 if there is none."""
        return max((held[0] for slot in SLOTS if (held := self.held(slot)) is not None), default=0)

    # -- written by the persister ------------------------------------------------------------------------------

    def finish(self, slot: int, number: int, digest: bytes = b"") -> None:
        """Mark copy `number` as processed by the persister: the slot may be overwritten.

        `digest` is the xxh3-128 of the written bytes; empty if writing failed.
        """
        _DONE.pack_into(self.view, _DONE_AT + slot * _DONE.size, number, int(bool(digest)), digest)

    def finished(self, slot: int) -> tuple[int, bytes]:
        """Return the last copy of that slot that the persister has processed, and the digest of the written bytes."""
        number, written, digest = _DONE.unpack_from(self.view, _DONE_AT + slot * _DONE.size)
        return number, digest if written else b""

    def mark_sent(self, slot: int, number: int, backup: int = 0) -> None:
        """Mark copy `number` as sent to its first or second backup, or given up."""
        _NUMBER.pack_into(self.view, self._sent_at(slot, backup), number)

    def sent(self, slot: int, backups: int = 1) -> bool:
        """Return whether that slot's copy was sent to so many backups, or given up; True for an empty slot."""
        held = self.held(slot)
        return held is None or all(
            _NUMBER.unpack_from(self.view, self._sent_at(slot, backup))[0] == held[0] for backup in range(backups)
        )

    @staticmethod
    def _sent_at(slot: int, backup: int) -> int:
        return _SENT_AT + (backup * len(SLOTS) + slot) * _NUMBER.size

    def free(self, slot: int) -> bool:
        """Return whether the slot may be overwritten."""
        held = self.held(slot)
        return held is None or self.finished(slot)[0] == held[0]

    def due(self) -> list[tuple[int, int, Note]]:
        """Return (slot, number, note) of complete copies that the persister has not processed, oldest first."""
        found = [(slot, *held) for slot in SLOTS if (held := self.held(slot)) and self.finished(slot)[0] != held[0]]
        return sorted(found, key=lambda one: one[1])
