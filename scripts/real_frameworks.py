"""Try the integrations against the real frameworks, on one CPU: each saves, is sealed, is damaged, and resumes.

    python scripts/real_frameworks.py            # those that are installed; a line for each, with its version

The project's tests play the frameworks by stand-ins, since they must not need them. What was tried with which version
is written down in docs/checkpoints.md.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from slurm_robust import checkpoint
from slurm_robust.checkpoint.integrations import Sealer, lightning_callback, resume_path, seal_saved, trainer_callback
from slurm_robust.checkpoint.integrations.sealing import _shared

Step = Callable[[Path], str]


def check(*, that: bool, what: str) -> None:
    """What a trial is to show.

    Raises:
        RuntimeError: it does not.
    """
    if not that:
        raise RuntimeError(what)


def whole(path: Path, step: int) -> None:
    """It is sealed, of this step, and every byte fits."""
    report = checkpoint.verify(path, values=True)
    check(that=report.verified and report.sealed and report.step == step, what=f"not sealed as it should be: {report}")


def damage(path: Path) -> None:
    """Cut something of it off."""
    inside = [one for one in path.rglob("*") if one.is_file()] or [path]
    victim = max(inside, key=lambda one: one.stat().st_size)
    os.truncate(victim, victim.stat().st_size - 1)


def lightning(folder: Path) -> str:
    """ModelCheckpoint, every two steps; the newest is damaged; a new trainer goes on from the one before."""
    pl: Any = importlib.import_module("lightning.pytorch")

    class Model(pl.LightningModule):  # type: ignore[misc]
        """One layer."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: Any, _: int) -> Any:
            return self.layer(batch).sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    def trainer(steps: int) -> Any:
        saving = importlib.import_module("lightning.pytorch.callbacks").ModelCheckpoint(
            folder, every_n_train_steps=2, save_top_k=-1
        )
        return pl.Trainer(
            max_steps=steps, callbacks=[saving, lightning_callback()], logger=False, accelerator="cpu",
            enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip

    data = torch.utils.data.DataLoader(torch.ones(64, 4), batch_size=2)
    trainer(6).fit(Model(), data, ckpt_path=resume_path(folder))
    paths = sorted(folder.glob("*.ckpt"))
    check(that=len(paths) == 3, what=f"saved {paths}")
    for step, path in zip((2, 4, 6), paths, strict=True):
        whole(path, step)
    damage(paths[-1])
    check(that=resume_path(folder) == str(paths[1]), what=f"chose {resume_path(folder)}")
    second = trainer(8)
    second.fit(Model(), data, ckpt_path=resume_path(folder))
    check(that=second.global_step == 8, what=f"ended at {second.global_step}")
    return "ModelCheckpoint sealed, damaged, resumed from the one before"


def transformers(folder: Path) -> str:
    """Trainer with save_steps; the newest is damaged; a new trainer goes on from the one before."""
    hf: Any = importlib.import_module("transformers")

    class Model(torch.nn.Module):
        """Returns its own loss."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def forward(self, x: Any = None, labels: Any = None) -> dict[str, Any]:
            return {"loss": (self.layer(x) - labels).square().mean()}

    def trainer(steps: int) -> Any:
        options = hf.TrainingArguments(
            output_dir=str(folder), max_steps=steps, save_steps=2, logging_steps=1, report_to=[], use_cpu=True,
            per_device_train_batch_size=2, disable_tqdm=True,
        )  # fmt: skip
        data = [{"x": torch.ones(4), "labels": torch.ones(1)} for _ in range(64)]
        sealer = Sealer(background=False)
        return hf.Trainer(model=Model(), args=options, train_dataset=data, callbacks=[trainer_callback(sealer)])

    trainer(6).train(resume_from_checkpoint=resume_path(folder))
    for step in (2, 4, 6):
        whole(folder / f"checkpoint-{step}", step)
    check(that=(folder / "srobust-health.json").exists(), what="no record of its loss")
    damage(folder / "checkpoint-6")
    check(that=resume_path(folder) == str(folder / "checkpoint-4"), what=f"chose {resume_path(folder)}")
    second = trainer(8)
    second.train(resume_from_checkpoint=resume_path(folder))
    check(that=second.state.global_step == 8, what=f"ended at {second.state.global_step}")
    return "save_steps sealed, damaged, resumed from the one before"


def accelerate(folder: Path) -> str:
    """`save_state` is sealed, `load_state` takes what verifies."""
    accelerator = importlib.import_module("accelerate").Accelerator(cpu=True)
    model = torch.nn.Linear(4, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    for step in (1, 2):
        accelerator.backward(model(torch.ones(2, 4)).sum())
        optimizer.step()
        seal_saved(accelerator.save_state(str(folder / f"step_{step}")))
    _shared().wait()
    for step in (1, 2):
        whole(folder / f"step_{step}", step)
    damage(folder / "step_2")
    chosen = resume_path(folder)
    check(that=chosen == str(folder / "step_1"), what=f"chose {chosen}")
    accelerator.load_state(chosen)
    return "save_state sealed, damaged, load_state of the one before"


TRIALS: dict[str, tuple[str, Step]] = {
    "lightning": ("lightning", lightning),
    "transformers": ("transformers", transformers),
    "accelerate": ("accelerate", accelerate),
}


def results() -> Iterator[tuple[str, bool]]:
    """A line for each framework, and whether it went well; one that is not installed did."""
    for name, (package, trial) in TRIALS.items():
        try:
            version = metadata.version(package)
        except metadata.PackageNotFoundError:
            yield f"{name}: not installed", True
            continue
        with tempfile.TemporaryDirectory(prefix="srobust-real-") as folder:
            try:
                yield f"{name} {version}: {trial(Path(folder))}", True
            except Exception:  # noqa: BLE001 (whatever a framework raises is the outcome)
                yield f"{name} {version}: FAILED\n{traceback.format_exc()}", False


def main() -> None:
    """Try them all; exit code 1 where one failed."""
    warnings.simplefilter("ignore")
    failed = False
    for line, good in results():
        print(line, flush=True)
        failed |= not good
    sys.exit(failed)


if __name__ == "__main__":
    main()
