"""Checks a checkpoint without a seal by its structure: truncated or empty files, wrong CRCs, missing shards.

Nothing is unpickled here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from slurm_robust.checkpoint.base import files
from slurm_robust.checkpoint.base.checkpoint_files import SEAL_NAME, beside
from slurm_robust.checkpoint.base.files import OnBytes
from slurm_robust.checkpoint.formats import registry, safetensors, torchfile
from slurm_robust.checkpoint.formats.dcp import METADATA
from slurm_robust.checkpoint.formats.tree import Tree

_OF_TORCH = (".pt", ".pth", ".bin", ".ckpt", ".pkl")
"""Accelerate's random states are a `.pkl`."""
_NEVER_EMPTY = (*_OF_TORCH, ".distcp", ".safetensors", ".json", ".metadata")
_IN_PIECES = ".distcp"
_TORCH = "torch.save"
_SAFETENSORS = "safetensors"
_LARGEST_JSON_BYTES = 1 << 30
_HEAD_BYTES = 4096
UNDETERMINED = "could not tell:"
"""Begins a problem that does not prove damage, but neither that it is a checkpoint."""
_SEAL_IT = "if you know that it is complete: srobust ckpt seal --unchecked"


class StructureReport(msgspec.Struct, kw_only=True):
    """The result of checking the structure.

    Attributes:
        formats: The formats that were recognised, the outermost first.
        step: The step; None if unknown.
        world_size: Ranks that wrote it; 0 if unknown.
        problems: (file, problem), the file relative to the checkpoint, empty for the checkpoint itself.
    """

    formats: tuple[str, ...] = ()
    step: int | None = None
    world_size: int = 0
    problems: list[tuple[str, str]] = []


class _FileReport(NamedTuple):
    """The result of checking one file.

    Attributes:
        kind: The file's format, empty if unknown.
        problem: The problem with the file.
        calls: An unknown function that loading it calls, if it contains no tensor.
        weights: Whether it may contain weights: tensors, or anything in a format of its own.
    """

    kind: str = ""
    problem: str = ""
    calls: str = ""
    weights: bool = True


def inspect(
    folder: Path,
    names: list[str],
    *,
    known: Collection[str] = (),
    kinds: Mapping[str, str] | None = None,
    on_bytes: OnBytes | None = None,
) -> StructureReport:
    """Check every file of the checkpoint, `names`, relative to `folder`, and whether they belong together.

    Files of unknown formats pass unless they are empty or begin with a hole. Of `known` files, which were checked
    before and have not changed, only the latter is checked; `kinds` are their formats if that is done the first time.

    Raises:
        OSError: a file cannot be read.
    """
    found = StructureReport()
    kinds = dict(kinds or {})
    new = [name for name in names if name not in known]
    inspected = dict(zip(new, files.in_parallel(lambda one: _file(folder / one, on_bytes), new), strict=True))
    kinds |= {name: file.kind for name, file in inspected.items()}
    found.problems += [(name, file.problem) for name, file in inspected.items() if file.problem]
    # An HF Trainer's training_args.bin calls much and contains no tensor, but the weights are beside it.
    if len(new) == len(names) and not any(file.weights for file in inspected.values()):
        found.problems += [
            (name, f"{UNDETERMINED} it contains no tensor, and loading it calls {file.calls}; {_SEAL_IT}")
            for name, file in inspected.items()
            if file.calls
        ]
    for where, report in registry.reports(folder, names):
        found.formats = tuple(dict.fromkeys((*found.formats, report.format)))
        found.step = report.step if found.step is None else found.step
        found.world_size = found.world_size or report.world_size
        # A damaged file is reported once, not again for its content that could not be read.
        damaged = {file for file, _ in found.problems}
        inside = [(f"{where}/{file}".strip("/"), what) for file, what in report.problems]
        of_torch = [f"{where}/{file}".strip("/") for file in report.of_torch]
        inside += [
            (file, "not a torch.save file: overwritten?") for file in of_torch if kinds.get(file, _TORCH) != _TORCH
        ]
        found.problems += [one for one in inside if one[0] not in damaged or not one[0]]
    found.formats = tuple(dict.fromkeys((*found.formats, *(kinds[name] for name in new if kinds[name]))))
    return found


def inspect_file(path: Path) -> tuple[str, str]:
    """Return the format of one file, and its problem; each may be empty. Raises OSError if it cannot be read."""
    return _file(path, None)[:2]


def is_checkpoint(path: Path) -> bool:
    """Return whether `path` itself is a checkpoint, and not a folder of several. OSError if it cannot be read."""
    if not path.is_dir() or beside(path, SEAL_NAME).exists():
        return True
    with os.scandir(path) as listing:
        mine = [entry.name for entry in listing if entry.is_file()]
        # Each of Lightning's files is a checkpoint; their folder is not.
    tree = Tree(path, [name for name in mine if not name.endswith(".ckpt")])
    return any(recognise(tree) is not None for recognise in registry.FORMATS) or any(
        name.startswith("mp_rank_")
        for name in os.listdir(path)  # noqa: PTH208 (only names are needed)
    )


def _file(path: Path, on_bytes: OnBytes | None) -> _FileReport:
    """Check one file; the pieces of a `.distcp` are checked by its format."""
    with files.named(path), path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
        size_bytes = path.stat().st_size
        # Markers of other tools are empty by design; weights never are.
        if not head.strip(b"\0"):
            hole = "begins with zeros: a hole left by a crash" if head else "empty file"
            return _FileReport(problem=hole if path.name.endswith(_NEVER_EMPTY) else "", weights=False)
        if path.name.endswith(".safetensors") or safetensors.looks_like(head[:9], size_bytes):
            return _FileReport(_SAFETENSORS, safetensors.read(file).problem)
        if path.name.endswith(".json"):
            return _FileReport(problem=_json_problem(path), weights=False)
        if path.name.endswith(_IN_PIECES) or path.name == METADATA:
            return _FileReport()
        if path.name.endswith(_OF_TORCH) and (torchfile.begins(head) or torchfile.almost_begins(head)):
            damaged = "begins like a torch.save file except for a few bytes: damaged"
            return _FileReport(_TORCH, f"{size_bytes} bytes: truncated" if torchfile.begins(head) else damaged)
        content = torchfile.read(file, whole=True, on_bytes=on_bytes)
    return _of_torch(content) if content is not None else _FileReport()


def _of_torch(content: torchfile.TorchfileContent) -> _FileReport:
    problem = content.problems[0] if content.problems else ""
    weights = content.holds_arrays() or bool(problem)
    return _FileReport(_TORCH, problem, "" if weights else content.unknown_call(), weights)


def _json_problem(path: Path) -> str:
    if path.stat().st_size > _LARGEST_JSON_BYTES:
        return ""
    try:
        json.loads(path.read_bytes())
    except json.JSONDecodeError as error:
        # Some tools write one object a line to .json files.
        return "" if error.msg == "Extra data" else f"incomplete or invalid JSON: {error}"
    except (ValueError, RecursionError) as error:
        return f"incomplete or invalid JSON: {error}"
    return ""
