"""Recognises Lightning: one `torch.save` file a checkpoint, `epoch=2-step=300.ckpt`, which tells its own step."""

from __future__ import annotations

from slurm_robust.checkpoint.formats import inert
from slurm_robust.checkpoint.formats.tree import FormatReport, Tree

NAME = "Lightning"
_VERSION = "pytorch-lightning_version"


def recognise(tree: Tree) -> FormatReport | None:
    """Recognise a `.ckpt` file by its content, or the folder of a sharded one by its `meta.pt`."""
    names = [name for name in tree.files if name.endswith(".ckpt") or name == "meta.pt"]
    if len(names) != 1:
        return None
    saved = tree.saved(names[0])
    if inert.field(saved, _VERSION) is None:
        return None
    report = FormatReport(format=NAME, step=inert.number(saved, "global_step"))
    if inert.field(saved, "state_dict") is None and names[0] != "meta.pt":
        report.problems.append((names[0], "holds no state_dict"))
    return report
