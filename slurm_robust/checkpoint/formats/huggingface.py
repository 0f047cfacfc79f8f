"""Recognises Hugging Face: weights split over files with an index, and the Trainer's `checkpoint-N` folders."""

from __future__ import annotations

import re
from typing import Any

from slurm_robust.checkpoint.base import files
from slurm_robust.checkpoint.base.checkpoint_files import unsafe
from slurm_robust.checkpoint.formats import inert, safetensors
from slurm_robust.checkpoint.formats.tree import FileProblem, FormatReport, Tree, gaps

TRAINER = "HF Trainer"
INDEXED = "weights with an index"
STATE = "trainer_state.json"
_SPLIT = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.(safetensors|bin)\Z")
_OF_RANK = re.compile(r"shard-\d{5}-")
"""The beginning of a file that one rank of torch's HuggingFaceStorageWriter wrote: without an index, and a rank without
data writes no file."""
_OF_TRAINER = frozenset({"training_args.bin", "scheduler.pt", "optimizer.pt", "optimizer.bin", "rng_state.pth"})


def recognise_trainer(tree: Tree) -> FormatReport | None:
    """Recognise a folder of the Trainer: `trainer_state.json` is among the last files that it writes."""
    folder = re.fullmatch(r"checkpoint-(\d+)", tree.name)
    ranks = {int(m[1]): n for n in tree.files if (m := re.fullmatch(r"rng_state_(\d+)\.pth", n))}
    state = tree.json(STATE)
    known = STATE in tree.files and isinstance(state, dict) and "global_step" in state
    sharded = any(name.startswith(("global_step", "pytorch_model_fsdp")) for name in tree.folders())
    if not known and not (folder and (ranks or sharded or tree.files & (_OF_TRAINER | {STATE}))):
        return None
    report = FormatReport(
        format=TRAINER, step=inert.number(state, "global_step"), world_size=max(ranks, default=-1) + 1
    )
    report.of_torch = [name for name in tree.files if name in _OF_TRAINER or name.startswith("rng_state_")]
    if STATE not in tree.files:
        report.problems.append((STATE, "missing: the save did not finish"))
    elif report.step is None:
        report.problems.append((STATE, "does not tell global_step: half written?"))
    elif folder and int(folder[1]) != report.step:
        report.problems.append((STATE, f"of step {report.step}"))
    report.problems += [(f"rng_state_{n}.pth", "missing, a later rank's is there") for n in gaps(set(ranks))]
    if "optimizer.pt" in tree.files and "scheduler.pt" not in tree.files:
        report.problems.append(("scheduler.pt", "missing, optimizer.pt is there"))
    if not any(_is_weights(name) for name in tree.names):
        report.problems.append(("", "no weights are in it"))
    return report


def recognise_indexed(tree: Tree) -> FormatReport | None:
    """Files that an index maps tensors to, or that say themselves how many they are."""
    report = FormatReport(
        format=INDEXED, of_torch=[name for name in tree.files if name.endswith(".bin") and _SPLIT.match(name)]
    )
    indexes = [name for name in tree.files if name.endswith((".safetensors.index.json", ".bin.index.json"))]
    split = {name: m for name in tree.files if (m := _SPLIT.match(name)) and not _OF_RANK.match(name)}
    if not indexes and not split:
        return None
    for name in sorted(indexes):
        report.problems += _index(tree, name, tree.json(name))
    families = {(m[1], int(m[3]), m[4]) for m in split.values()}
    for stem, count, ending in sorted(families):
        found = {int(m[2]) - 1 for m in split.values() if (m[1], int(m[3]), m[4]) == (stem, count, ending)}
        report.problems += [
            (f"{stem}-{n + 1:05d}-of-{count:05d}.{ending}", "missing") for n in gaps(found, min(count, 1 << 16))
        ]
    if split and not indexes:
        report.problems.append(("", "files of a split checkpoint without their index: the save did not finish"))
    report.problems = list(dict.fromkeys(report.problems))  # the index and the names tell of the same missing file
    return report


def _index(tree: Tree, name: str, index: Any) -> list[FileProblem]:
    """Hold an index against its files. Raises OSError if one cannot be read."""
    places = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(places, dict) or not places:
        return [(name, "names no tensors: half written?")]
    wrong: list[FileProblem] = []
    by_file: dict[str, list[str]] = {}
    for tensor, file in places.items():
        if not isinstance(file, str) or unsafe(file):
            wrong.append((name, f"{tensor}: {file!r} is outside of the checkpoint"))
        else:
            by_file.setdefault(file, []).append(tensor)
    for file, tensors in sorted(by_file.items()):
        if file not in tree.names:
            wrong.append((file, "missing"))
            continue
        inside = _names(tree, file)
        lost = [tensor for tensor in tensors if inside is not None and tensor not in inside]
        if lost:
            more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
            wrong.append((file, f"does not hold {lost[0]}{more}, which {name} places there"))
    return wrong


def _names(tree: Tree, file: str) -> set[str] | None:
    """Return the tensors in a file; None if that cannot be told (a damaged file is told of anyway)."""
    if file.endswith(".safetensors"):
        with files.named(tree.folder / file), (tree.folder / file).open("rb") as opened:
            content = safetensors.read(opened)
        return set(content.tensors) if not content.problem else None
    saved = tree.saved(file)
    inside = saved.items if isinstance(saved, inert.Husk) else saved
    return set(inside) if isinstance(inside, dict) else None


def _is_weights(name: str) -> bool:
    return name.endswith((".safetensors", ".bin", ".distcp", "_states.pt", ".pt", ".pth")) and not name.startswith(
        ("training_args", "scheduler", "optimizer", "rng_state", "scaler")
    )
