"""Recognises DeepSpeed: `global_step…/` with states of each model-parallel rank and ZeRO shards of each data rank."""

from __future__ import annotations

import re
from collections import defaultdict

from slurm_robust.checkpoint.formats import inert
from slurm_robust.checkpoint.formats.tree import FileProblem, FormatReport, Tree, gaps, of_other_steps

NAME = "DeepSpeed"
TRACKER = "latest"
_MODEL = re.compile(r"mp_rank_(\d{2,})_model_states\.pt\Z")
_ZERO = re.compile(r"(?:(?:bf16|fp16)_)?zero_pp_rank_(\d+)_mp_rank_(\d{2,})_(optim|model)_states\.pt\Z")
_LAYER = re.compile(r"layer_(\d{2,})-model_(\d{2,})-model_states\.pt\Z")

_EXPERT = re.compile(r"layer_(\d+)_expert_(\d+)_mp_rank_(\d{2,})_model_states\.pt\Z")
_Zero = dict[tuple[str, int], dict[int, str]]
"""Kind (model, optim) and model-parallel rank → data-parallel rank → its shard."""


def recognise(tree: Tree) -> FormatReport | None:
    """Report on the folder of one tag; None if DeepSpeed did not write this folder."""
    models = {int(m[1]): name for name in tree.files if (m := _MODEL.match(name))}
    zero: _Zero = defaultdict(dict)
    layers: dict[int, set[int]] = defaultdict(set)
    for name in tree.files:
        if match := _ZERO.match(name):
            zero[match[3], int(match[2])][int(match[1])] = name
        elif match := _LAYER.match(name):
            layers[int(match[1])].add(int(match[2]))
    if not models and not zero:
        return None
    report = FormatReport(format=NAME)
    saved = tree.saved(models[min(models)]) if models else tree.saved(_first(zero))
    report.of_torch = [name for name in tree.files if name.endswith("_states.pt")]
    report.step = inert.number(saved, "global_steps")
    data, model = inert.number(saved, "dp_world_size"), inert.number(saved, "mp_world_size")
    report.world_size = (data or 0) * (model or 1)
    _models(report, models, zero, model)
    _shards(report, zero, data, model)
    states = [
        *models.values(),
        *(name for (kind, _), found in zero.items() if kind == "model" for name in found.values()),
    ]
    report.problems += of_other_steps(tree, sorted(states), "global_steps", report.step)
    _experts(report, tree)
    for layer, found in sorted(layers.items()):
        across = max(max(inside) for inside in layers.values()) + 1
        report.problems += [
            (f"layer_{layer:02d}-model_{n:02d}-model_states.pt", "missing") for n in gaps(found, max(across, 1))
        ]
    match = re.fullmatch(r"global_step(\d+)", tree.name)
    if match and report.step is not None and report.step != int(match[1]):
        report.problems.append(("", f"its states are of step {report.step}"))
    return report


def _missing(name: str, found: set[int], count: int) -> list[FileProblem]:
    """Return the files of a numbered series that are not there; `name` has `{}` for the number."""
    return [(name.format(n), "missing") for n in gaps(found, min(count, 1 << 16))]


def _first(zero: _Zero) -> str:
    kind = "model" if any(kind == "model" for kind, _ in zero) else "optim"
    shards = next(files for (found, _), files in sorted(zero.items()) if found == kind)
    return shards[min(shards)]


def _models(report: FormatReport, models: dict[int, str], zero: _Zero, model: int | None) -> None:
    """Report the missing model states of model-parallel ranks; under ZeRO 3 they lie in shards."""
    if not any(kind == "model" for kind, _ in zero):
        # A pipeline writes one file a rank, too; how many, the highest shard or file tells.
        count = max({*models, *(rank for _, rank in zero)}, default=-1) + 1
        report.problems += _missing("mp_rank_{:02d}_model_states.pt", set(models), max(count, model or 0))


def _shards(report: FormatReport, zero: _Zero, data: int | None, model: int | None) -> None:
    """Report missing shards: each model-parallel rank has one shard for each data-parallel rank."""
    if not zero:
        return
    widest = max(max(shards) for shards in zero.values()) + 1
    count = min(data if data is not None else widest, 1 << 16)
    kinds = {kind for kind, _ in zero}
    ranks = max({rank for _, rank in zero}) + 1
    if kinds == {"model"}:
        report.problems.append(("", "no optimizer states are there"))
    for kind in sorted(kinds):
        for rank in range(max(ranks, min(model or 0, 1 << 16))):
            found = zero.get((kind, rank), {})
            shape = next(iter(found.values()), _any(zero, kind))
            prefix = shape.partition("zero_pp_rank_")[0]
            name = f"{prefix}zero_pp_rank_{{}}_mp_rank_{rank:02d}_{kind}_states.pt"
            report.problems += _missing(name, set(found), count)[:100]
    if widest > count:
        report.problems.append(("", f"shards of {widest} data-parallel ranks are there, it was written by {count}"))


def _any(zero: _Zero, kind: str) -> str:
    return next(name for (found, _), shards in zero.items() if found == kind for name in shards.values())


def _experts(report: FormatReport, tree: Tree) -> None:
    """Report missing experts: each layer's experts are numbered in sequence, and each rank has all of them."""
    found: dict[tuple[int, int], set[int]] = defaultdict(set)
    for name in tree.files:
        if match := _EXPERT.match(name):
            found[int(match[1]), int(match[3])].add(int(match[2]))
    count = max((max(experts) for experts in found.values()), default=-1) + 1
    for (layer, rank), experts in sorted(found.items()):
        name = f"layer_{layer}_expert_{{}}_mp_rank_{rank:02d}_model_states.pt"
        report.problems += _missing(name, experts, count)[:100]


def recognise_tracker(tree: Tree) -> FormatReport | None:
    """Recognise a tracker inside of a checkpoint, as in an HF Trainer's folder: it names the tag's folder beside it."""
    tags = {name.split("/")[-2] for name in tree.names if name.endswith("_states.pt") and "/" in name}
    if TRACKER not in tree.files or not tags:
        return None
    text = tree.text(TRACKER)
    lost = pinned(text) is None or text not in tree.folders()
    return FormatReport(format=NAME, problems=[(TRACKER, f"points at {text!r}, which is not there")] if lost else [])


def pinned(text: str) -> str | None:
    """Return the folder that the tracker's text names; None for a text that cannot be a folder's name."""
    return text if text and "/" not in text and text not in (".", "..") else None


def pin(name: str) -> str | None:
    """Return the text by which the tracker names this folder."""
    return name
