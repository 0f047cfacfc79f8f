"""`srobust ckpt seal`: one checkpoint, or all complete ones of a folder."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from slurm_robust import checkpoint
from slurm_robust.checkpoint.base.checkpoint_files import SEAL_NAME, beside
from slurm_robust.checkpoint.store.seal_folder import SETTLED_S
from slurm_robust.cli import ckpt_output as out
from slurm_robust.cli.teaching import lesson

ONE = ("srobust ckpt seal ckpt/step-100", "seal what your own code wrote")
ALL = ("srobust ckpt seal ckpt --all", "all that are complete and not sealed yet; for cron")


@click.command(epilog=lesson([ONE, ALL], out.EXITS))
@out.PATH
@click.option(
    "--step", type=click.IntRange(min=0), help="Its step, if neither its content nor its name has it (iter_0000100)."
)
@click.option("--unchecked", is_flag=True, help="Do not check its structure.")
@click.option("--all", "all_", is_flag=True, help="PATH is a folder of checkpoints: seal those without a seal.")
@click.option(
    "--settled",
    "settled_s",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    default=SETTLED_S,
    show_default=True,
    help="With --all: skip what was modified in the last so many seconds.",
)
@out.JSON
def command(path: Path, *, step: int | None, unchecked: bool, all_: bool, settled_s: float, as_json: bool) -> None:
    """Seal an existing checkpoint, after checking its structure.

    Ends a demotion. Do not seal a checkpoint that is still being written. --all skips those that were modified
    recently, have a seal or are demoted, and exits 1 if one is damaged.
    """
    if all_:
        if step is not None or unchecked:
            raise click.UsageError("--all takes neither --step nor --unchecked")
        _seal_all(path, settled_s, as_json)
        return
    with out.errors_reported(), out.progress_bar(path, "sealing") as on_bytes:
        new = checkpoint.seal(path, step, unchecked=unchecked, on_bytes=on_bytes)
    if as_json:
        out.print_json({"path": path, "step": new.step, "files": len(new.files), "seal": beside(path, SEAL_NAME)})
    else:
        out.print_line(f"{path}: sealed, step {new.step}, {out.extent(new)}")


def _seal_all(directory: Path, settled_s: float, as_json: bool) -> None:
    with out.errors_reported(), out.progress_bar(directory, "sealing") as on_bytes:
        done = checkpoint.seal_all(directory, settled_s=settled_s, on_bytes=on_bytes)
    if as_json:
        out.print_json(
            {
                "directory": str(directory),
                "sealed": [{"path": path, "step": new.step, "files": len(new.files)} for path, new in done.sealed],
                "waiting": out.reasons(done.waiting),
                "refused": out.reasons(done.refused),
            }
        )
    else:
        for path, new in done.sealed:
            out.print_line(f"sealed   {path}: step {new.step}, {out.extent(new)}")
        for word, left in (("waiting ", done.waiting), ("refused ", done.refused)):
            for path, why in left:
                out.print_line(f"{word} {path}: {why}")
        if not (done.sealed or done.waiting or done.refused):
            out.print_line(
                f"{directory}: no checkpoint without a seal"
                + ("; without --all, this folder itself" if out.is_one_checkpoint(directory) else "")
            )
    sys.exit(out.EXIT_NOT_VERIFIED if done.refused else 0)
