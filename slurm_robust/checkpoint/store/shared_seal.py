"""Seals a checkpoint by several nodes: each digests its share of the files, node 0 combines them and writes the seal.

So no single node has to read everything back. Nodes leave notes in the checkpoint's folder, `part-00003.json`: no
connection, no collective, so it may run beside a training. If a note is missing or does not match, node 0 digests those
files itself.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from slurm_robust.checkpoint.base import files
from slurm_robust.checkpoint.base.checkpoint_files import contents, part_path, require
from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.store import structure
from slurm_robust.checkpoint.store.seals import FileSeal, Seal, SealOrigin, digested, step_of, write

WAIT_S = 120.0
"""Wait for other nodes' notes: a network file system may show a new file only after a minute."""
_POLL_S = 0.05


class NodePart(msgspec.Struct, frozen=True, kw_only=True):
    """One node's note for a shared seal.

    Attributes:
        sizes: Every file that the node saw, and its size; notes with different files are not combined.
        files: The files of the node's share.
        kinds: The format of each file of the share; empty if unknown.
        problem: A file of the share with a problem, and the problem; empty if there is none.
    """

    sizes: dict[str, int]
    files: tuple[FileSeal, ...]
    kinds: dict[str, str]
    problem: str = ""


def shares(sizes: Mapping[str, int], nodes: int) -> list[list[str]]:
    """Return the files that each node digests, about the same bytes for each: the same result on every node."""
    found: list[list[str]] = [[] for _ in range(nodes)]
    taken = [0] * nodes
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        least = min(range(nodes), key=lambda node: (taken[node], len(found[node]), node))
        found[least].append(name)
        taken[least] += sizes[name]
    return found


def forget(path: Path, node: int) -> None:
    """Remove this node's note of an earlier save to the same folder; call it before the ranks' last barrier."""
    with contextlib.suppress(OSError):
        part_path(path, node).unlink()


def contribute(path: Path, node: int, nodes: int) -> None:
    """Digest this node's share of the folder at `path`, which is complete, and leave the note of it.

    Raises:
        CheckpointError: it does not exist, or a link in it points outside.
        OSError: something cannot be read or written.
    """
    require(path)
    if path.is_dir():
        sizes = _sizes(path)
        files.write_atomic(part_path(path, node), msgspec.json.encode(_part(path, sizes, node, nodes)), durable=False)


def seal_together(path: Path, nodes: int, step: int | None = None, *, wait_s: float = WAIT_S) -> Seal:
    """Node 0: seal the folder at `path`, which is complete, with what all `nodes` digested, including this one.

    It waits `wait_s` for their notes; then it digests their files here. `step` as for `seals.seal`.

    Raises:
        CheckpointError: as `seals.seal`.
        OSError: something cannot be read or written.
    """
    require(path)
    sizes = _sizes(path)
    if not sizes:
        raise CheckpointError(f"{path}: holds no file to seal")
    names = sorted(sizes)
    parts = [_part(path, sizes, 0, nodes)]
    deadline_s = time.monotonic() + wait_s
    for node in range(1, nodes):
        part = _await(path, node, sizes, deadline_s)
        parts.append(part if part is not None else _part(path, sizes, node, nodes))
    for part in parts:
        if part.problem:
            raise CheckpointError(f"{path}/{part.problem}", f"Not sealed; srobust ckpt verify {path}")
    # Each file was checked when it was digested: what remains is whether they belong together.
    kinds = {name: kind for part in parts for name, kind in part.kinds.items()}
    found = structure.inspect(path, names, known=names, kinds=kinds)
    if found.problems:
        file, what = found.problems[0]
        raise CheckpointError(f"{path / file}: {what}", f"Not sealed; srobust ckpt verify {path}")
    sealed = tuple(file for part in parts for file in part.files)
    formats = dict.fromkeys((*found.formats, *(kinds[name] for name in names if kinds[name])))
    new = write(path, step_of(path, step, found.step), found.world_size, sealed, SealOrigin(layout=", ".join(formats)))
    for node in range(1, nodes):
        forget(path, node)
    return new


def _part(path: Path, sizes: dict[str, int], node: int, nodes: int) -> NodePart:
    """Return the note of a node's share."""

    def one(name: str) -> tuple[FileSeal, str, str]:
        return digested(path, name), *structure.inspect_file(path / name)

    done = files.in_parallel(one, shares(sizes, nodes)[node])
    return NodePart(
        sizes=sizes,
        files=tuple(new for new, _, _ in done),
        kinds={new.name: kind for new, kind, _ in done},
        problem=next((f"{new.name}: {what}" for new, _, what in done if what), ""),
    )


def _await(path: Path, node: int, sizes: dict[str, int], deadline_s: float) -> NodePart | None:
    """Return another node's note once it exists; None if it does not come, or has other files."""
    while True:
        with contextlib.suppress(FileNotFoundError):
            try:
                part = msgspec.json.decode(part_path(path, node).read_bytes(), type=NodePart)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                return None
            return part if part.sizes == sizes and _as_it_lies(path, part) else None
        if time.monotonic() > deadline_s:
            return None
        time.sleep(_POLL_S)


def _as_it_lies(path: Path, part: NodePart) -> bool:
    """Return whether the files are unchanged since: a late note may be of an earlier save to the same folder."""
    for file in part.files:
        now = (path / file.name).stat()
        if (now.st_size, now.st_mtime_ns, now.st_ino) != (file.size_bytes, file.mtime_ns, file.inode):
            return False
    return True


def _sizes(path: Path) -> dict[str, int]:
    return {name: (path / name).stat().st_size for name in contents(path)}
