"""The seal: what a checkpoint consists of, and the digest of every byte, written last.

A folder carries `seal.json` and its files' names are relative to it; a single file `F` has `F.seal.json` beside it. A
new seal takes the place of the old one in one rename, and ends a demotion of the old one.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path, PurePosixPath
from typing import Annotated

import msgspec

from slurm_robust import __version__
from slurm_robust.checkpoint import files
from slurm_robust.checkpoint.errors import CheckpointError

SEAL_NAME = "seal.json"
VERSION = 1
OWN_FILES = re.compile(
    r"(seal|demoted|verified)\.json\Z|part-\d+\.json\Z|\..*\.tmp\Z|.*\.(seal|demoted|verified)\.json\Z"
)
"""Names that belong to us and are never part of what is sealed."""
_STEP_IN_NAME = re.compile(r"(?:step|iter|epoch|checkpoint|ckpt)[-_=]?0*(\d+)(?=\D*\Z)|\A0*(\d+)\Z", re.IGNORECASE)

Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}$")]
PartDigest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{16}$")]


class FileSeal(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a checkpoint.

    Attributes:
        name: Relative to the folder, with `/`.
        mtime_ns: When it last changed, as it was when its digest was taken.
        inode: The same file as then has the same one; with size and time of change it saves reading it again.
        parts: xxh3-64 of every 64 MiB of a file that has more, so that damage can be told by where it lies.
    """

    name: str
    size_bytes: Annotated[int, msgspec.Meta(ge=0)]
    xxh3_128: Digest
    mtime_ns: int
    inode: int
    parts: tuple[PartDigest, ...] = ()


class Seal(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint consists of; `program` is what wrote the seal, `created_at_s` seconds since the epoch."""

    version: int
    step: int
    world_size: Annotated[int, msgspec.Meta(ge=0)]
    """Ranks that wrote it; 0 where it was sealed from outside and nobody knows."""
    created_at_s: float
    program: str
    files: tuple[FileSeal, ...]
    layout: str = ""
    """The formats that were recognised, `HF Trainer, safetensors`; empty where it was not sealed from outside."""


def beside(path: Path, name: str) -> Path:
    """Where `name` (`seal.json`, …) of the checkpoint at `path` lies: in the folder, or beside the file."""
    return path / name if path.is_dir() else path.with_name(f"{path.name}.{name}")


def base(path: Path) -> Path:
    """The folder that the seal's file names are relative to."""
    return path if path.is_dir() else path.parent


def step_in_name(path: Path) -> int | None:
    """The step that a name tells (`step-00000100`, `iter_0001234`, `global_step7`, `checkpoint-500`), or None."""
    match = _STEP_IN_NAME.search(path.stem if path.suffix else path.name)
    return int(match[1] or match[2]) if match else None


def read(path: Path) -> Seal | None:
    """The seal of the checkpoint at `path`; None where it has none.

    Raises:
        CheckpointError: there is one, and it cannot be read, or speaks of files outside of its folder.
    """
    where = beside(path, SEAL_NAME)
    try:
        found = msgspec.json.decode(where.read_bytes(), type=Seal)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{where}: the seal cannot be read: {error}", _remedy(path)) from None
    if found.version != VERSION:
        raise CheckpointError(f"{where}: a seal of version {found.version}, known is {VERSION}", "Update slurm-robust")
    if not found.files:
        raise CheckpointError(f"{where}: the seal names no file", _remedy(path))
    for file in found.files:
        if unsafe(file.name):
            raise CheckpointError(f"{where}: {file.name!r} lies outside of the checkpoint", _remedy(path))
    return found


def unsafe(name: str) -> bool:
    """True for a name that would lead out of the folder it is relative to."""
    parts = PurePosixPath(name)
    return not parts.parts or parts.is_absolute() or ".." in parts.parts or "\0" in name


def write(
    path: Path, step: int, world_size: int, sealed: tuple[FileSeal, ...], program: str = "", *, layout: str = ""
) -> Seal:
    """Seal the checkpoint at `path`; from the rename on it may be chosen.

    Raises:
        OSError: it cannot be written; an older seal stands as it was.
    """
    new = Seal(
        version=VERSION,
        step=step,
        world_size=world_size,
        created_at_s=time.time(),
        program=program or f"slurm-robust {__version__}",
        files=tuple(sorted(sealed, key=lambda file: file.name)),
        layout=layout,
    )
    files.write_atomic(beside(path, SEAL_NAME), msgspec.json.format(msgspec.json.encode(new), indent=1))
    for name in ("demoted.json", "verified.json"):  # both speak of the seal before, and would be ignored anyway
        beside(path, name).unlink(missing_ok=True)
    return new


def describe(folder: Path, name: str, xxh3_128: str, parts: tuple[str, ...] = ()) -> FileSeal:
    """The entry for a file whose digest is known.

    Raises:
        OSError: it is not there.
    """
    stat = (folder / name).stat()
    return FileSeal(
        name=name,
        size_bytes=stat.st_size,
        xxh3_128=xxh3_128,
        mtime_ns=stat.st_mtime_ns,
        inode=stat.st_ino,
        parts=parts,
    )


def contents(path: Path) -> list[str]:
    """Names of all files of the checkpoint at `path`, our own apart, sorted.

    Raises:
        CheckpointError: a link leads out of the folder, or nowhere.
        OSError: it, or a folder in it, cannot be listed.
    """
    if not path.is_dir():
        return [path.name]
    names: list[str] = []
    todo = [""]
    while todo:
        where = todo.pop()
        with os.scandir(path / where) as listing:
            for entry in listing:
                name = f"{where}{entry.name}"
                if entry.is_symlink():
                    _check_link(path, path / name)
                if entry.is_dir(follow_symlinks=False):
                    todo.append(f"{name}/")
                elif entry.is_file() and not OWN_FILES.match(entry.name):
                    names.append(name)
    return sorted(names)


def _check_link(path: Path, link: Path) -> None:
    if not link.exists():
        raise CheckpointError(f"{link}: a link that leads nowhere", "Remove it, or bring back what it led to")
    if not link.resolve().is_relative_to(path.resolve()):
        raise CheckpointError(f"{link}: a link that leads out of {path}", "Copy what it leads to into the folder")


def seal(
    path: str | Path,
    step: int | None = None,
    *,
    program: str = "",
    unchecked: bool = False,
    on_bytes: files.OnBytes | None = None,
) -> Seal:
    """Seal a checkpoint that is already there, a folder or a single file; its structure is looked at first.

    Args:
        path: The checkpoint.
        step: Where neither its content nor its name tells it, or tells it wrong.
        program: What wrote it.
        unchecked: Seal it whatever its structure looks like.
        on_bytes: Told of every piece that is digested.

    Raises:
        CheckpointError: it is not there, empty, damaged, or its step is neither given nor told by it or its name.
    """
    from slurm_robust.checkpoint.structure import look  # noqa: PLC0415 (the lookup at restart does without)

    path = Path(path)
    if not path.exists():
        raise CheckpointError(f"{path}: no such checkpoint", f"`srobust ckpt list {path.parent}` shows what is there")
    try:
        names = contents(path)
        if not names:
            raise CheckpointError(f"{path}: holds no file to seal")
        found = look(base(path), names)
        if found.problems and not unchecked:
            file, what = found.problems[0]
            raise CheckpointError(f"{base(path) / file}: {what}", f"Not sealed; srobust ckpt verify {path}")
        for told in (found.step, step_in_name(path)):
            step = told if step is None else step
        if step is None:
            raise CheckpointError(f"{path}: the name does not tell the step", f"srobust ckpt seal {path} --step N")
        sealed = tuple(_digested(base(path), name, on_bytes) for name in names)
        return write(path, step, found.world_size, sealed, program, layout=", ".join(found.formats))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be sealed: {error}") from error


def _digested(folder: Path, name: str, on_bytes: files.OnBytes | None) -> FileSeal:
    parts: list[str] = []
    before = (folder / name).stat()
    new = describe(folder, name, files.digest(folder / name, on_bytes, parts), tuple(parts))
    if (new.size_bytes, new.mtime_ns, new.inode) != (before.st_size, before.st_mtime_ns, before.st_ino):
        raise CheckpointError(f"{folder / name}: was written to meanwhile", "Seal it when its save has finished")
    return new


def _remedy(path: Path) -> str:
    return f"`srobust ckpt verify {path}` looks at its structure, `srobust ckpt seal {path}` seals what is there"
