"""A rank's checkpoint memory: a header, what never changes, and two slots that are copied into in turn.

    0          magic, sizes
    1024       slot 0: number, length and CRC of its note, the note (JSON)
    2048       slot 1
    3072       what the persister has written: number and outcome of each slot
    3584       what it has sent to the nodes that keep this rank's backups: for each, number of each slot
    4096       the description (JSON), then DCP's `.metadata` where this rank keeps it
    …          slot 0, slot 1, each from a multiple of 2 MiB on

A slot is *complete* when its number is not 0 and its note fits its CRC. Whoever copies into it sets the number to 0
first and to the next one last, so that a copy that was cut short by a kill is never taken for one.
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
    """What a slot holds; `save_id` is the same on all ranks of one save, and on no other save's.

    Attributes:
        tiers: Where it is to be, out of `tiers.TIERS`.
    """

    save_id: str
    step: int
    folder: str
    saved_at_s: float
    tiers: tuple[str, ...] = ("shared",)


class ImageDescription(msgspec.Struct, frozen=True, kw_only=True):
    """What an image is of.

    Attributes:
        directory: Where checkpoints go.
        rank: Whose.
        world_size: Ranks that save together.
        file: This rank's file within a checkpoint; empty where it writes nothing.
        file_bytes: Of it.
        metadata_bytes: Of DCP's `.metadata`, 0 where this rank keeps none.
        digest: Of all ranks' plans: images with the same one can be loaded together.
        keep: Sealed checkpoints that stay, 0 for all.
        local: The folder of these checkpoints on the node's own disk; empty for none.
        keep_local: Saves that stay there, beside those that other ranks may still be writing; 0 for all.
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
    """How large an image is, and where its parts begin."""

    static_bytes: int
    slot_bytes: int

    @property
    def slots_at(self) -> int:
        """Where slot 0 begins."""
        return _up(PAGE_BYTES + self.static_bytes, _HUGE_BYTES)

    @property
    def total_bytes(self) -> int:
        """Of the whole image."""
        return self.slots_at + len(SLOTS) * self.slot_bytes


def _up(value: int, step: int) -> int:
    return -(-value // step) * step


def sizes(static_bytes: int, file_bytes: int) -> ImageSizes:
    """The sizes of an image for a file of so many bytes."""
    small = file_bytes < _HUGE_BYTES
    return ImageSizes(_up(static_bytes, PAGE_BYTES), _up(file_bytes, PAGE_BYTES if small else _HUGE_BYTES))


class Image:
    """A mapped image; `fd` stays the caller's, and must be open as long as somebody wants to pass it on."""

    def __init__(self, fd: int, *, populate: bool = False) -> None:
        self.fd = fd
        flags = mmap.MAP_SHARED | (getattr(mmap, "MAP_POPULATE", 0) if populate else 0)
        self.map = mmap.mmap(fd, os.fstat(fd).st_size, flags)
        self.view = memoryview(self.map)

    def close(self) -> None:
        """Unmap it; views and tensors of it that somebody still holds keep it mapped."""
        self.view.release()
        try:
            self.map.close()
        except BufferError:
            return

    # -- what never changes ------------------------------------------------------------------------------------

    def describe(self, made: ImageSizes, description: ImageDescription, metadata: bytes) -> None:
        """Write what never changes; the slots are empty from now on."""
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
        """What it is of; None where nothing was written yet."""
        magic, *_, text_bytes, _ = _HEAD.unpack_from(self.view, 0)
        if magic != _MAGIC:
            return None
        try:
            return msgspec.json.decode(self.view[PAGE_BYTES : PAGE_BYTES + text_bytes], type=ImageDescription)
        except msgspec.MsgspecError:
            return None

    @property
    def static(self) -> tuple[bytes, memoryview]:
        """The description as it stands there, and the metadata: what makes another image one of the same."""
        *_, text_bytes, _ = _HEAD.unpack_from(self.view, 0)
        return bytes(self.view[PAGE_BYTES : PAGE_BYTES + text_bytes]), self.metadata

    @property
    def metadata(self) -> memoryview:
        """DCP's `.metadata`, empty where this rank keeps none."""
        *_, text_bytes, metadata_bytes = _HEAD.unpack_from(self.view, 0)
        at = PAGE_BYTES + text_bytes
        return self.view[at : at + metadata_bytes]

    @property
    def sizes(self) -> ImageSizes:
        """How large its parts are."""
        _, static_bytes, slot_bytes, _, _ = _HEAD.unpack_from(self.view, 0)
        return ImageSizes(static_bytes, slot_bytes)

    def slot(self, number: int) -> memoryview:
        """The bytes of a slot."""
        made = self.sizes
        at = made.slots_at + number * made.slot_bytes
        return self.view[at : at + made.slot_bytes]

    @property
    def slots(self) -> memoryview:
        """The bytes of both."""
        return self.view[self.sizes.slots_at :]

    # -- copies ------------------------------------------------------------------------------------------------

    def begin(self, slot: int) -> None:
        """What the slot holds is void from now on."""
        _NUMBER.pack_into(self.view, _SLOTS_AT[slot], 0)

    def commit(self, slot: int, number: int, note: Note) -> None:
        """The slot is complete, as copy `number` (from 1 on).

        Raises:
            ValueError: the note is too long.
        """
        text = msgspec.json.encode(note)
        if len(text) > _NOTE_MOST_BYTES - _NOTE_HEAD.size:
            raise ValueError(f"a note of {len(text)} bytes")
        at = _SLOTS_AT[slot] + _NUMBER.size
        crc = zlib.crc32(text, zlib.crc32(_NUMBER.pack(number)))
        self.view[at + _NOTE_HEAD.size : at + _NOTE_HEAD.size + len(text)] = text
        _NOTE_HEAD.pack_into(self.view, at, len(text), crc)
        _NUMBER.pack_into(self.view, _SLOTS_AT[slot], number)

    def held(self, slot: int) -> tuple[int, Note] | None:
        """Number and note of a complete slot; None for one that is empty, or was left half copied."""
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
        """The highest number of a complete slot, 0 where there is none."""
        return max((held[0] for slot in SLOTS if (held := self.held(slot)) is not None), default=0)

    # -- the persister's word ----------------------------------------------------------------------------------

    def finish(self, slot: int, number: int, digest: bytes = b"") -> None:
        """The persister is through with copy `number`: the slot may be copied into.

        Args:
            slot: Where it is.
            number: Of the copy.
            digest: xxh3-128 of what was written; empty where that failed.
        """
        _DONE.pack_into(self.view, _DONE_AT + slot * _DONE.size, number, int(bool(digest)), digest)

    def finished(self, slot: int) -> tuple[int, bytes]:
        """The last copy of that slot that the persister is through with, and the digest of what it wrote."""
        number, written, digest = _DONE.unpack_from(self.view, _DONE_AT + slot * _DONE.size)
        return number, digest if written else b""

    def mark_sent(self, slot: int, number: int, backup: int = 0) -> None:
        """The persister is through with sending copy `number` to its first or second backup, if that worked or not."""
        _NUMBER.pack_into(self.view, self._sent_at(slot, backup), number)

    def sent(self, slot: int, backups: int = 1) -> bool:
        """Whether it is through with sending what that slot holds to so many backups; True for an empty slot."""
        held = self.held(slot)
        return held is None or all(
            _NUMBER.unpack_from(self.view, self._sent_at(slot, backup))[0] == held[0] for backup in range(backups)
        )

    @staticmethod
    def _sent_at(slot: int, backup: int) -> int:
        return _SENT_AT + (backup * len(SLOTS) + slot) * _NUMBER.size

    def free(self, slot: int) -> bool:
        """Whether the slot may be copied into."""
        held = self.held(slot)
        return held is None or self.finished(slot)[0] == held[0]

    def due(self) -> list[tuple[int, int, Note]]:
        """(slot, number, note) of complete copies that the persister is not through with, oldest first."""
        found = [(slot, *held) for slot in SLOTS if (held := self.held(slot)) and self.finished(slot)[0] != held[0]]
        return sorted(found, key=lambda one: one[1])
