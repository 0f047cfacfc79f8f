"""Writes and reads the seal of a checkpoint, `seal.json`: its files with the digest of every byte.

A seal is written last. A folder contains `seal.json`, with file names relative to the folder; a single file `F` has
`F.seal.json` beside it. A new seal replaces the old one in one rename, and ends a demotion of the old one.
"""

from __future__ import annotations

import re
import stat
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from slurm_robust import __version__
from slurm_robust.checkpoint.base import files
from slurm_robust.checkpoint.base.checkpoint_files import (
    DEMOTED_NAME,
    SEAL_NAME,
    VERIFIED_NAME,
    base,
    beside,
    contents,
    require,
    unsafe,
)
from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.replay import REFUSED, in_replay

VERSION = 1
_STEP_NAMED = re.compile(r"step=(\d{1,18})(?!\d)")
"""Lightning's and NeMo's names may continue after it: epoch=0-step=300-val_loss=0.25.ckpt"""
_STEP_IN_NAME = re.compile(r"(?:step|iter|epoch|checkpoint|ckpt)[-_=]?0*(\d+)(?=\D*\Z)|\A0*(\d+)\Z", re.IGNORECASE)

_MOST = (1 << 63) - 1
_LARGEST_BYTES = 4 << 30
"""The largest file that is read into memory: enough for millions of files."""
_CHECK = re.compile(rb'"check": ?"([0-9a-f]{8})"\s*}\s*\Z')
_NO_CHECK = "0" * 8

Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}$")]
PartDigest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{16}$")]


class FileSeal(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a checkpoint.

    Attributes:
        name: The file's path relative to the folder, with `/`.
        mtime_ns: The file's time of change when its digest was taken.
        inode: The file's inode. If size, time of change and inode are the same, the file need not be read again.
        parts: xxh3-64 of every 64 MiB of a larger file, to locate damage.
    """

    name: str
    size_bytes: Annotated[int, msgspec.Meta(ge=0, le=_MOST)]
    xxh3_128: Digest
    mtime_ns: int
    inode: int
    parts: tuple[PartDigest, ...] = ()


class Seal(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a seal; `program` wrote it, `created_at_s` is in seconds since the epoch."""

    version: int
    step: Annotated[int, msgspec.Meta(ge=0, le=_MOST)]
    world_size: Annotated[int, msgspec.Meta(ge=0)]
    """Ranks that wrote it; 0 if unknown, since it was sealed from outside."""
    created_at_s: float
    program: str
    files: tuple[FileSeal, ...]
    layout: str = ""
    """The formats that were recognised, `HF Trainer, safetensors`; empty if it was not sealed from outside."""
    saved_at_s: float = 0.0
    """When training copied the state in it, which may be long before the files were written; 0 if unknown."""
    check: str = ""
    """CRC-32 of the seal itself, with zeros for these eight digits; empty in old seals."""


def step_in_name(path: Path) -> int | None:
    """Return the step in a name (`step-00000100`, `iter_0001234`, `global_step7`, `checkpoint-500`), or None."""
    if named := _STEP_NAMED.search(path.name):
        return int(named[1])
    match = _STEP_IN_NAME.search(path.stem if path.suffix else path.name)
    return int(match[1] or match[2]) if match else None


def step_of(path: Path, given: int | None, in_content: int | None) -> int:
    """Return the given step, else the one in the content, else the one in the name; CheckpointError without any."""
    for step in (given, in_content, step_in_name(path)):
        if step is not None and 0 <= step <= _MOST:
            return step
    raise CheckpointError(
        f"{path}: its step is unknown: neither its content nor its name says it", f"srobust ckpt seal {path} --step N"
    )


def read(path: Path) -> Seal | None:
    """Return the seal of the checkpoint at `path`; None if it has none.

    Raises:
        CheckpointError: it cannot be read, or lists files outside of its folder.
    """
    try:
        where = beside(path, SEAL_NAME)
        now = where.stat()
        if not stat.S_ISREG(now.st_mode) or now.st_size > _LARGEST_BYTES:
            raise CheckpointError(f"{where}: not a seal: not a regular file, or too large ({now.st_size} bytes)")
        with files.named(where):
            raw = where.read_bytes()
        found = msgspec.json.decode(raw, type=Seal)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:  # unreadable, which is not the same as a bad seal
        raise CheckpointError(f"{path}: its seal cannot be read: {error}", _remedy(path)) from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{where}: the seal cannot be read: {error}", _remedy(path)) from None
    if found.version != VERSION:
        raise CheckpointError(f"{where}: a seal has version {found.version}, known is {VERSION}", "Update slurm-robust")
    if not found.files:
        raise CheckpointError(f"{where}: the seal lists no file", _remedy(path))
    for file in found.files:
        if unsafe(file.name):
            raise CheckpointError(f"{where}: {file.name!r} is outside of the checkpoint", _remedy(path))
    if found.check and _crc(raw) != found.check:
        raise CheckpointError(f"{where}: the seal itself changed since it was written", _remedy(path))
    return found


def _crc(raw: bytes) -> str:
    """Return the CRC that a seal of these bytes should contain; not a CRC if its place is damaged."""
    match = _CHECK.search(raw)
    if match is None:
        return "damaged"
    return f"{zlib.crc32(raw[: match.start(1)] + _NO_CHECK.encode() + raw[match.end(1) :]):08x}"


@dataclass(frozen=True)
class SealOrigin:
    """The origin of a checkpoint: the fields of `Seal` of the same names; an empty `program` is this package."""

    program: str = ""
    layout: str = ""
    saved_at_s: float = 0.0


def write(
    path: Path, step: int, world_size: int, sealed: tuple[FileSeal, ...], origin: SealOrigin | None = None
) -> Seal:
    """Write the seal of the checkpoint at `path`; from then on it may be chosen.

    Raises:
        OSError: it cannot be written; an older seal is unchanged.
        CheckpointError: this is a replay; the same.
    """
    if in_replay():
        raise CheckpointError(REFUSED)
    origin = origin or SealOrigin()
    new = Seal(
        version=VERSION,
        step=step,
        world_size=world_size,
        created_at_s=time.time(),
        program=origin.program or f"slurm-robust {__version__}",
        files=tuple(sorted(sealed, key=lambda file: file.name)),
        layout=origin.layout,
        saved_at_s=origin.saved_at_s,
        check=_NO_CHECK,
    )
    new = msgspec.structs.replace(new, check=_crc(_encoded(new)))
    files.write_atomic(beside(path, SEAL_NAME), _encoded(new))
    for name in (DEMOTED_NAME, VERIFIED_NAME):  # both are about the old seal, and would be ignored anyway
        beside(path, name).unlink(missing_ok=True)
    return new


def _encoded(one: Seal) -> bytes:
    return msgspec.json.format(msgspec.json.encode(one), indent=1)


def describe(folder: Path, name: str, xxh3_128: str, parts: tuple[str, ...] = ()) -> FileSeal:
    """Return the entry for a file whose digest is known. Raises OSError if the file does not exist."""
    stat = (folder / name).stat()
    return FileSeal(
        name=name,
        size_bytes=stat.st_size,
        xxh3_128=xxh3_128,
        mtime_ns=stat.st_mtime_ns,
        inode=stat.st_ino,
        parts=parts,
    )


def read_back(folder: Path, name: str, meant: str) -> FileSeal:
    """Digest a file that was just written, and describe it.

    Raises:
        CheckpointError: its digest is not the `meant` one.
        OSError: it cannot be read.
    """
    parts: list[str] = []
    found = files.digest(folder / name, None, parts)
    if found != meant:
        raise CheckpointError(
            f"{folder / name}: the bytes read back differ from those written: xxh3-128 {found}, expected {meant}",
            "Memory, disk controller or file system is faulty: srobust check",
        )
    return describe(folder, name, meant, tuple(parts))


def seal(
    path: str | Path,
    step: int | None = None,
    *,
    program: str = "",
    unchecked: bool = False,
    on_bytes: files.OnBytes | None = None,
) -> Seal:
    """Seal an existing checkpoint, a folder or a single file, after checking its structure.

    Args:
        path: The checkpoint.
        step: The step, if neither content nor name of the checkpoint has the right one.
        program: The program that wrote it.
        unchecked: Do not check its structure.
        on_bytes: Called for every piece that is digested.

    Raises:
        CheckpointError: the checkpoint does not exist, is empty or damaged, or its step is unknown.
    """
    from slurm_robust.checkpoint.store.structure import inspect  # noqa: PLC0415 (the lookup at a restart does not need it)

    path = Path(path)
    try:
        require(path)
        names = contents(path)
        if not names:
            raise CheckpointError(f"{path}: holds no file to seal")
        found = inspect(base(path), names)
        if found.problems and not unchecked:
            file, what = found.problems[0]
            raise CheckpointError(f"{base(path) / file}: {what}", f"Not sealed; srobust ckpt verify {path}")
        step = step_of(path, step, found.step)
        sealed = tuple(files.in_parallel(lambda name: digested(base(path), name, on_bytes), names))
        return write(path, step, found.world_size, sealed, SealOrigin(program, ", ".join(found.formats)))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be sealed: {error}") from error


def digested(folder: Path, name: str, on_bytes: files.OnBytes | None = None) -> FileSeal:
    """Digest a file and its parts.

    Raises:
        CheckpointError: it was modified while it was read.
        OSError: it cannot be read.
    """
    parts: list[str] = []
    before = (folder / name).stat()
    new = describe(folder, name, files.digest(folder / name, on_bytes, parts), tuple(parts))
    if (new.size_bytes, new.mtime_ns, new.inode) != (before.st_size, before.st_mtime_ns, before.st_ino):
        raise CheckpointError(f"{folder / name}: was modified while it was read", "Seal it when its save has finished")
    return new


def _remedy(path: Path) -> str:
    return f"`srobust ckpt seal {path}` checks its structure and seals it again"
