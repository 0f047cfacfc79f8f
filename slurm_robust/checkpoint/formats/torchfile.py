"""Reads files that `torch.save` writes: a zip of records with CRCs (before torch 1.6: pickles and raw storages)."""

from __future__ import annotations

import errno
import os
import zipfile
import zlib
from collections.abc import Mapping
from typing import IO, Any

import msgspec

from slurm_robust.checkpoint.base.files import OnBytes
from slurm_robust.checkpoint.formats import inert, names, zipend

ZIP_MAGIC = b"PK\x03\x04"
LEGACY_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""A pickle of the number 0x1950a86a20f9469cfc6c."""
_CHUNK_BYTES = 1 << 19
MAX_PICKLE_BYTES = 1 << 28
"""The largest unpacked size of a compressed pickle. torch compresses none; an uncompressed one may have a data
loader's hundred million indices."""
_LOCAL_HEADER_BYTES = 30
_UNREADABLE_FLAGS = 0x1 | 0x20 | 0x40 | 0x2000
"""Encrypted or patched: torch never writes such."""
_FOLDER = 0x10
"""MS-DOS's attribute of a folder: torch takes such a record for empty, and leaves its tensor with random memory."""
_ENDS_WITHIN_BYTES = 1 << 16
ITEM_BYTES = {
    "Double": 8, "Float": 4, "Half": 2, "BFloat16": 2, "Long": 8, "Int": 4, "Short": 2, "Char": 1, "Byte": 1,
    "Bool": 1, "ComplexDouble": 16, "ComplexFloat": 8, "QInt8": 1, "QUInt8": 1, "QInt32": 4, "QUInt4x2": 1,
    "QUInt2x4": 1, "Untyped": 1,
}  # fmt: skip
"""The bytes of one element of `torch.<name>Storage`."""
_ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError, LookupError, RuntimeError)


class Storage(msgspec.Struct, frozen=True, kw_only=True):
    """The place of the bytes of one or more tensors in the file; `kind` is Float for `torch.FloatStorage`."""

    key: str
    kind: str
    numel: int
    offset: int = -1
    size_bytes: int = 0


class TorchfileContent(msgspec.Struct, kw_only=True):
    """The contents that a file names.

    Attributes:
        value: The saved value, as husks and plain values; None if its pickle could not be read.
        storages: The storages that it names, by key.
        calls: The functions and classes that unpickling it would call, each once.
        problems: The problems with the file.
    """

    value: Any = None
    storages: dict[str, Storage] = {}
    calls: list[str] = []
    problems: list[str] = []

    def holds_arrays(self) -> bool:
        """Return whether there are tensors in it, or arrays of numpy's."""
        return bool(self.storages) or any(path.startswith("numpy.") for path in self.calls)

    def unknown_call(self) -> str:
        """Return the first called function or class that does not just rebuild a plain value; empty without one."""
        return next((path for path in self.calls if path[0] != "." and not names.rebuilds(path)), "")


def almost_begins(head: bytes) -> bool:
    """Return whether a file begins nearly as an old torch file does: with most of its first bytes, but not with all."""
    fits = sum(one == other for one, other in zip(head, LEGACY_MAGIC, strict=False))
    return len(LEGACY_MAGIC) * 2 <= fits * 3 < len(LEGACY_MAGIC) * 3


def begins(head: bytes) -> bool:
    """Return whether a whole file of so few bytes is the beginning of one of torch's."""
    return ZIP_MAGIC.startswith(head) or LEGACY_MAGIC.startswith(head)


def is_zip(file: IO[bytes]) -> bool:
    """Return whether it begins, or ends, as a zip does: damage at one end does not hide it."""
    file.seek(0)
    if file.read(4) == ZIP_MAGIC:
        return True
    size_bytes = file.seek(0, os.SEEK_END)
    file.seek(max(0, size_bytes - _ENDS_WITHIN_BYTES))
    return b"PK\x05\x06" in file.read(_ENDS_WITHIN_BYTES)


def read_zip(file: IO[bytes], *, whole: bool, on_bytes: OnBytes | None = None) -> TorchfileContent:
    """Directory, pickle, tensors' bounds and, if `whole`, each record's CRC. Raises OSError if it cannot be read."""
    record = ""
    content = TorchfileContent()
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            # torch.serialization.set_crc32_options(False) writes none: then there is nothing to compare.
            has_crcs = any(entry.CRC for entry in entries)
            places: dict[str, tuple[int, int]] = {}
            for entry in entries:
                record = entry.filename
                offset = _data_offset(file, entry)
                places[record] = (offset, entry.file_size)
                if whole and has_crcs:
                    _compare(file, archive, entry, offset, on_bytes)
            record = next((name for name in places if name.rpartition("/")[2] == "data.pkl"), "")
            if record and (what := zipend.problem(file, archive.start_dir, len(entries))):
                content.problems.append(what)
            if record:
                _understand(content, _pickled(file, archive, record, places[record], has_crcs=has_crcs), places)
    except _ZIP_ERRORS as error:
        cause = error.__context__
        if isinstance(cause, OSError) and cause.errno != errno.EINVAL:
            raise cause from None  # zipfile takes a bad sector at the file's end for no zip
        problem = f"record {record!r}: {error}" if record else f"zip directory: {error} (truncated?)"
        if not problem.startswith("record") or not record.endswith("data.pkl") or whole:
            content.problems.append(problem)
    return content


def _pickled(
    file: IO[bytes], archive: zipfile.ZipFile, record: str, place: tuple[int, int], *, has_crcs: bool
) -> bytes:
    """Return the pickle. Raises ValueError if it is too large: packed, it may be far larger than the file."""
    offset, size_bytes = place
    if size_bytes > max(MAX_PICKLE_BYTES, archive.getinfo(record).compress_size):
        raise ValueError(f"{size_bytes} bytes to describe tensors (at most {MAX_PICKLE_BYTES})")
    if has_crcs:
        with archive.open(record) as packed:
            return packed.read(size_bytes + 1)
    file.seek(offset)
    return file.read(size_bytes)


def _data_offset(file: IO[bytes], entry: zipfile.ZipInfo) -> int:
    """Return where a record's bytes begin, by the header before them, as torch does; ValueError for a wrong header."""
    if not 0 <= entry.header_offset < 1 << 62:
        raise ValueError(f"no header at byte {entry.header_offset}")
    packed = entry.compress_type != zipfile.ZIP_STORED
    folder = entry.external_attr & _FOLDER and not entry.is_dir()
    wrong_size = entry.compress_size != entry.file_size and not packed
    if entry.volume or entry.flag_bits & _UNREADABLE_FLAGS or folder or wrong_size:
        raise ValueError("its entry in the directory is damaged")
    file.seek(entry.header_offset)
    header = file.read(_LOCAL_HEADER_BYTES)
    if len(header) < _LOCAL_HEADER_BYTES or header[:4] != ZIP_MAGIC:
        raise ValueError(f"no header at byte {entry.header_offset}")
    name_bytes, extra_bytes = int.from_bytes(header[26:28], "little"), int.from_bytes(header[28:30], "little")
    if file.read(name_bytes) != entry.orig_filename.encode():
        raise ValueError(f"the header at byte {entry.header_offset} speaks of another record")
    return entry.header_offset + _LOCAL_HEADER_BYTES + name_bytes + extra_bytes


def _compare(
    file: IO[bytes], archive: zipfile.ZipFile, entry: zipfile.ZipInfo, offset: int, on_bytes: OnBytes | None
) -> None:
    """Compare a record with its CRC; ValueError (zipfile's or zlib's, if it is compressed) if it does not fit."""
    if entry.compress_type != zipfile.ZIP_STORED:
        with archive.open(entry) as packed:
            while got := packed.read(_CHUNK_BYTES):
                if on_bytes is not None:
                    on_bytes(len(got))
        return
    crc, left = 0, entry.file_size
    buffer = memoryview(bytearray(min(_CHUNK_BYTES, max(left, 1))))
    file.seek(offset)
    while left:
        got_bytes = file.readinto(buffer[: min(left, len(buffer))])  # type: ignore[attr-defined]
        if not got_bytes:
            raise ValueError(f"ends {left} bytes early")
        crc = zlib.crc32(buffer[:got_bytes], crc)
        left -= got_bytes
        if on_bytes is not None:
            on_bytes(got_bytes)
    if crc != entry.CRC:
        end = offset + entry.file_size - 1
        raise ValueError(f"CRC-32 {crc:08x} of bytes {offset} to {end}, written with {entry.CRC:08x}")


def _understand(content: TorchfileContent, pickled: bytes, places: dict[str, tuple[int, int]]) -> None:
    """Read the pickle, and hold the storages it names against the records that are there."""
    found: list[Any] = []
    try:
        content.value = inert.load(pickled, found.append, content.calls.append)
    except ValueError as error:
        content.problems.append(f"data.pkl: {error}")
        return
    records = {name.partition("/")[2]: place for name, place in places.items()}
    for pid in found:
        storage = _storage(pid)
        if storage is None or storage.key in content.storages:
            continue
        if f"data/{storage.key}" not in records:
            content.problems.append(f"record 'data/{storage.key}' of a tensor is not there")
            continue
        offset, size_bytes = records[f"data/{storage.key}"]
        item_bytes = ITEM_BYTES.get(storage.kind)
        if item_bytes is not None and storage.numel * item_bytes != size_bytes:
            content.problems.append(
                f"record 'data/{storage.key}' has {size_bytes} bytes for {storage.numel} elements of {storage.kind}"
            )
        content.storages[storage.key] = msgspec.structs.replace(storage, offset=offset, size_bytes=size_bytes)
    content.problems += _out_of_bounds(content.value, content.storages)


def _storage(pid: Any) -> Storage | None:
    if not isinstance(pid, tuple) or len(pid) < 5 or pid[0] != "storage":
        return None
    kind = inert.path_of(pid[1]).rpartition(".")[2].removesuffix("Storage")
    key, numel = pid[2], pid[4]
    # A key that is no plain value may have no end once it is written out.
    is_plain = isinstance(key, (str, int)) and isinstance(numel, int) and abs(numel) < 1 << 62
    return Storage(key=str(key), kind=kind, numel=numel) if is_plain else None


def read_legacy(file: IO[bytes]) -> TorchfileContent:
    """Pickles and storages of a file from before torch 1.6, or of `_use_new_zipfile_serialization=False`.

    Raises:
        OSError: it cannot be read.
    """
    content = TorchfileContent()
    found: list[Any] = []
    file.seek(0)
    try:
        for _ in range(3):  # a number, the protocol's version, sizes of C types
            inert.load(file)
        content.value = inert.load(file, found.append, content.calls.append)
        keys = inert.load(file)
    except ValueError as error:
        content.problems.append(f"{error} (truncated?)")
        return content
    storages = {one.key: one for pid in found if (one := _storage(pid)) is not None}
    listed = {str(key) for key in keys} if isinstance(keys, list) else set[str]()
    if lost := sorted(listed ^ storages.keys()):
        why = "it is listed, and no tensor has it" if lost[0] in listed else "a tensor has it, and it is not listed"
        content.problems.append(f"storage {lost[0]}: {why}")
        return content
    content.problems += _out_of_bounds(content.value, storages)
    at, size_bytes = file.tell(), file.seek(0, os.SEEK_END)
    placed: dict[str, Storage] = {}
    for storage in (storages[str(key)] for key in keys):
        key, item_bytes = storage.key, ITEM_BYTES.get(storage.kind)
        if item_bytes is None:
            return content  # of an unknown kind: the beginning of the next one is unknown
        file.seek(at)
        stored_numel = int.from_bytes(file.read(8), "little")
        end = at + 8 + storage.numel * item_bytes
        if stored_numel != storage.numel or end > size_bytes:
            content.problems.append(f"storage {key} at byte {at}: {stored_numel} elements told, {storage.numel} meant, "
                                    f"the file has {size_bytes} bytes and should have {end}")  # fmt: skip
            return content
        placed[storage.key] = msgspec.structs.replace(storage, offset=at + 8, size_bytes=end - at - 8)
        at = end
    content.storages = placed
    return content


def read(file: IO[bytes], *, whole: bool, on_bytes: OnBytes | None = None) -> TorchfileContent | None:
    """Return the content of an open file, None if it is not of `torch.save`. Raises OSError if it cannot be read."""
    if is_zip(file):
        return read_zip(file, whole=whole, on_bytes=on_bytes)
    file.seek(0)
    return read_legacy(file) if file.read(len(LEGACY_MAGIC)) == LEGACY_MAGIC else None


def tensors(content: TorchfileContent) -> list[tuple[str, str, Storage]]:
    """Return (name, type of its elements, storage) of every tensor that has bytes in the file."""
    found = []
    for name, husk in inert.walk(content.value):
        storage = _of_tensor(husk, content.storages)
        if storage is not None:
            last = inert.path_of(husk.args[-1]) if len(husk.args) >= 7 else ""
            kind = last.removeprefix("torch.") if last.startswith("torch.") else storage.kind
            found.append((name, kind, storage))
    return found


def shape(value: Any) -> tuple[int, ...] | None:
    """Return the shape of a tensor that `inert` has read; None if the value is not a tensor."""
    if isinstance(value, inert.Husk) and value.path.startswith("torch._utils._rebuild_tensor") and len(value.args) > 3:
        size = value.args[2]
        return size if isinstance(size, tuple) else None
    return None


def _of_tensor(husk: inert.Husk, storages: Mapping[str, Storage]) -> Storage | None:
    if shape(husk) is None:
        return None
    storage = husk.args[0]
    pid = storage.args[0] if isinstance(storage, inert.Husk) and storage.args else None
    one = _storage(pid)
    return storages.get(one.key) if one is not None else None


def _out_of_bounds(value: Any, storages: Mapping[str, Storage]) -> list[str]:
    """Report the first tensor that reaches beyond its storage."""
    for name, husk in inert.walk(value):
        storage = _of_tensor(husk, storages)
        if storage is None or storage.kind == "Untyped":  # in bytes, of elements whose size stands elsewhere
            continue
        offset, sizes, strides = husk.args[1:4]
        if not isinstance(strides, tuple) or not all(type(n) is int and n >= 0 for n in (offset, *sizes, *strides)):
            continue
        last = offset + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=False))
        if 0 not in sizes and last >= storage.numel:
            return [f"{name}: a tensor of {sizes} reaches beyond the {storage.numel} elements of its storage"]
    return []
