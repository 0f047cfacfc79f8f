"""Tries all known formats on a folder, which may have several: an HF Trainer's contains DeepSpeed's, for example."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

from slurm_robust.checkpoint.formats import dcp, deepspeed, huggingface, lightning, megatron
from slurm_robust.checkpoint.formats.tree import FormatReport, Tree

FORMATS: tuple[Callable[[Tree], FormatReport | None], ...] = (
    huggingface.recognise_trainer,
    lightning.recognise,
    megatron.recognise,
    deepspeed.recognise,
    deepspeed.recognise_tracker,
    dcp.recognise,
    huggingface.recognise_indexed,
)


def reports(folder: Path, names: list[str]) -> Iterator[tuple[str, FormatReport]]:
    """Yield (folder below, what a format says of it), from the top down. Raises OSError if a file cannot be read."""
    below: dict[str, list[str]] = defaultdict(list)
    below[""] = names
    for name in names:
        parts = name.split("/")
        for depth in range(1, len(parts)):
            below["/".join(parts[:depth])].append("/".join(parts[depth:]))
    for where, inside in sorted(below.items(), key=lambda one: (one[0].count("/") + bool(one[0]), one[0])):
        tree = Tree(folder / where, inside)
        for recognise in FORMATS:
            if (found := recognise(tree)) is not None:
                yield where, found
