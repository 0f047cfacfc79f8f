"""Megatron-LM: `iter_0001234/mp_rank_TT[_PPP[_EEE]]/model_optim_rng.pt`, or torch_dist shards with `common.pt`."""

from __future__ import annotations

import itertools
import re
from typing import Any

from slurm_robust.checkpoint.formats import inert
from slurm_robust.checkpoint.formats.tree import FormatReport, Tree, of_other_steps

NAME = "Megatron-LM"
TRACKER = "latest_checkpointed_iteration.txt"
_RANK = re.compile(r"mp_rank_(\d{2,})(?:_(\d{3,}))?(?:_(\d{3,}))?\Z")
_CONFIG, _COMMON = "metadata.json", "common.pt"
_MODEL = ("model_optim_rng.pt", "model_rng.pt")


def recognise(tree: Tree) -> FormatReport | None:
    """Report on the folder of one iteration; None if Megatron-LM did not write this folder."""
    ranks = {match.groups(): name for name in tree.folders() if (match := _RANK.match(name))}
    if ranks and any("/" in name and name.rpartition("/")[2] in _MODEL for name in tree.names):
        return _by_rank(tree, {tuple(int(n) for n in key if n is not None): name for key, name in ranks.items()})
    report = tree.json(_CONFIG) if _CONFIG in tree.files else None
    named = isinstance(report, dict) and "sharded_backend" in report
    begun = re.match(r"iter_\d+\Z", tree.name) or tree.files & {_CONFIG, ".metadata"}
    if named or (_COMMON in tree.files and begun):
        return _distributed(tree, report if named else None)
    return None


def _distributed(tree: Tree, config: Any) -> FormatReport:
    """Shards in the way of torch.distributed.checkpoint, whose own check looks at them."""
    report = FormatReport(format=NAME, of_torch=[_COMMON] if _COMMON in tree.files else [])
    common = tree.saved(_COMMON)
    report.step = inert.number(common, "iteration")
    if report.step is None:  # NeMo's is Lightning's
        report.step = inert.number(common, "global_step")
    if _CONFIG not in tree.files:
        report.problems.append((_CONFIG, "missing: it is written last, the save did not finish"))
    if inert.field(config, "common_backend") in (None, "torch") and _COMMON not in tree.files:
        report.problems.append((_COMMON, f"missing: {_CONFIG} tells of it"))
    if inert.field(config, "sharded_backend") == "torch_dist" and ".metadata" not in tree.files:
        report.problems.append((".metadata", f"missing: {_CONFIG} tells of torch_dist shards"))
    _compare_step(tree, report, _COMMON)
    return report


def _by_rank(tree: Tree, ranks: dict[tuple[int, ...], str]) -> FormatReport:
    """Check one folder for each tensor-, pipeline- and expert-parallel rank: all must exist, with the same files."""
    report = FormatReport(format=NAME, of_torch=[name for name in tree.names if name.endswith(".pt")])
    files = {name: {n.partition("/")[2] for n in tree.names if n.startswith(f"{name}/")} for name in ranks.values()}
    expected = set().union(*files.values())
    for name, inside in sorted(files.items()):
        report.problems += [(f"{name}/{file}", "missing, other ranks have it") for file in sorted(expected - inside)]
    counts = [max(key[n] for key in ranks if len(key) > n) + 1 for n in range(max(len(key) for key in ranks))]
    first = next(name for _, name in sorted(ranks.items()))
    model = next((file for file in _MODEL if file in files[first]), "")
    saved = tree.saved(f"{first}/{model}") if model else None
    args = inert.field(saved, "args")
    report.step = inert.number(saved, "iteration")
    report.world_size = inert.number(args, "world_size") or 0
    for n, (key, words) in enumerate(
        (("tensor_model_parallel_size", "tensor"), ("pipeline_model_parallel_size", "pipeline"))
    ):
        meant = inert.number(args, key)
        there = counts[n] if n < len(counts) else 1
        if meant is not None and meant != there:
            report.problems.append(("", f"{there} {words}-parallel ranks are there, it was written by {meant}"))
            counts[n : n + 1] = [max(meant, there)]
    for rank in itertools.product(*(range(min(count, 4096)) for count in counts)):
        if rank not in ranks:
            report.problems.append((_folder(rank), "missing"))
            if len(report.problems) > 100:
                break
    report.problems += of_other_steps(
        tree, (f"{name}/{model}" for _, name in sorted(ranks.items())), "iteration", report.step
    )
    _compare_step(tree, report, f"{first}/{model}")
    return report


def _folder(key: tuple[int, ...]) -> str:
    return "mp_rank_" + "_".join(f"{n:02d}" if at == 0 else f"{n:03d}" for at, n in enumerate(key))


def _compare_step(tree: Tree, report: FormatReport, file: str) -> None:
    match = re.fullmatch(r"iter_(\d+)", tree.name)
    if match and report.step is not None and int(match[1]) != report.step:
        report.problems.append((file, f"of iteration {report.step}, in a folder of {int(match[1])}"))


def pinned(text: str) -> str | None:
    """Return the folder that the tracker's text names; None if the text is not an iteration."""
    if text == "release":
        return text
    return f"iter_{int(text):07d}" if text.isascii() and text.isdecimal() else None


def pin(name: str) -> str | None:
    """Return the text by which the tracker names this folder; None if it cannot."""
    match: Any = re.fullmatch(r"iter_(\d{7,})", name)
    return str(int(match[1])) if match else ("release" if name == "release" else None)
