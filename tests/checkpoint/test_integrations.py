"""What frameworks save is sealed, and what they start from verifies: played by small stand-ins with the same calls.

The real libraries are tried by scripts/real_frameworks.py, which needs them installed.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from checkpoint_material import deepspeed, megatron, nemo, trainer

from slurm_robust import checkpoint
from slurm_robust.checkpoint.health import health_log
from slurm_robust.checkpoint.integrations import (
    Sealer,
    group,
    huggingface,
    lightning,
    lightning_callback,
    pin_latest,
    resume_path,
    resume_tag,
    seal_saved,
    sealing,
    trainer_callback,
)
from slurm_robust.checkpoint.store.verification import verify

Make = Callable[..., Path]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """One process, without a word from outside of who it is or where it resumes."""
    for name in ("RANK", "SLURM_PROCID", "SROBUST_RESUME_PATH", "SROBUST_RESUME_STEP"):
        monkeypatch.delenv(name, raising=False)


class LightningTrainer:
    """Saves as Lightning's does: one file, which it may remove later."""

    def __init__(self, checkpoint_io: object = None) -> None:
        self.is_global_zero = True
        self.strategy = types.SimpleNamespace(checkpoint_io=checkpoint_io)
        self.step = 0

    def save_checkpoint(self, filepath: str, weights_only: bool = False) -> str:
        """Write it."""
        self.step += 1
        saved = {"pytorch-lightning_version": "2.6.6", "global_step": self.step, "state_dict": {"w": torch.ones(2)}}
        torch.save(saved, filepath)
        return "saved"


def test_lightning_seals_each_save(tmp_path: Path) -> None:
    """Each file has its seal and step; the trainer's answer is passed on; a second fit wraps nothing twice."""
    trainer, callback = LightningTrainer(), lightning.SealOnSave()
    for _ in range(2):
        callback.setup(trainer, None, stage="fit")
    first, last = tmp_path / "epoch=0-step=1.ckpt", tmp_path / "last.ckpt"
    assert trainer.save_checkpoint(str(first)) == "saved"
    for _ in range(2):  # written over: sealed anew
        trainer.save_checkpoint(str(last))
    callback.teardown(trainer, None, stage="fit")
    assert [(verify(path).sealed, verify(path).step) for path in (first, last)] == [(True, 1), (True, 3)]
    assert resume_path(tmp_path) == str(last)


def test_lightning_other_ranks_do_not_seal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them does."""
    monkeypatch.setenv("RANK", "1")
    trainer, callback = LightningTrainer(), lightning.SealOnSave(Sealer(background=False))
    callback.setup(trainer)
    trainer.save_checkpoint(str(tmp_path / "step=1.ckpt"))
    assert not verify(tmp_path / "step=1.ckpt").sealed


def test_lightning_asynchronous_saves_are_sealed_later(tmp_path: Path) -> None:
    """Not while they may be being written: before the next save, and at the end."""

    class AsyncCheckpointIO:
        """By its name."""

    trainer, callback = LightningTrainer(AsyncCheckpointIO()), lightning.SealOnSave(Sealer(background=False))
    callback.setup(trainer)
    paths = [tmp_path / f"step={n}.ckpt" for n in (1, 2)]
    trainer.save_checkpoint(str(paths[0]))
    assert not verify(paths[0]).sealed
    trainer.save_checkpoint(str(paths[1]))
    assert [verify(path).sealed for path in paths] == [True, False]
    callback.teardown()
    assert verify(paths[1]).sealed


def test_lightning_seals_of_removed_files_go(tmp_path: Path) -> None:
    """Its `save_top_k` removes a file and knows nothing of seals."""
    trainer, callback = LightningTrainer(), lightning.SealOnSave(Sealer(background=False))
    callback.setup(trainer)
    trainer.save_checkpoint(str(tmp_path / "step=1.ckpt"))
    (tmp_path / "step=1.ckpt").unlink()
    trainer.save_checkpoint(str(tmp_path / "step=2.ckpt"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step=2.ckpt", "step=2.ckpt.seal.json"]


class NeMoTrainer(LightningTrainer):
    """Saves as NeMo 2's ModelCheckpoint has it save: to a folder, which then gets its context, under a mark."""

    def save_checkpoint(self, filepath: str, weights_only: bool = False) -> str:
        """Write the weights."""
        shutil.copytree(
            nemo(Path(tempfile.mkdtemp(dir=Path(filepath).parent))) / "weights", self.folder(filepath) / "weights"
        )
        return "saved"

    @staticmethod
    def folder(filepath: str) -> Path:
        """`ckpt_to_dir` of NeMo."""
        return Path(filepath.removesuffix(".ckpt"))

    def checkpoint(self, filepath: str) -> Path:
        """`ModelCheckpoint._save_checkpoint` of NeMo, without asynchronous saving."""
        folder = self.folder(filepath)
        mark = Path(f"{folder}-unfinished")
        mark.touch()
        self.save_checkpoint(filepath)
        (folder / "context").mkdir()
        (folder / "context" / "io.json").write_text('{"root": 1}')
        mark.unlink()
        return folder


def test_nemos_folders_are_sealed_with_what_comes_later(tmp_path: Path) -> None:
    """The name that it is given is no file's; the context is part of what is sealed; AutoResume gets the folder."""
    where = tmp_path / "checkpoints"
    where.mkdir()
    trainer, callback = NeMoTrainer(), lightning.SealOnSave(Sealer(background=False))
    callback.setup(trainer, None, stage="fit")
    path = trainer.checkpoint(str(where / "model--val_loss=1.23-step=7-consumed_samples=56.0-last.ckpt"))
    assert not verify(path).sealed
    callback.on_train_batch_start(trainer, None, None, 0)
    report = verify(path)
    assert (report.sealed, report.verified, report.step) == (True, True, 7)
    (path / "context" / "io.json").write_text('{"root": 2}')
    assert [problem.file for problem in verify(path).problems] == ["context/io.json"]
    (path / "context" / "io.json").write_text('{"root": 1}')
    assert resume_path(where) == str(path)


def test_nemos_asynchronous_saves_wait_for_its_mark(tmp_path: Path) -> None:
    """While the mark is there it is not sealed; at the end neither, since NeMo would remove it at its next start."""

    class AsyncFinalizableCheckpointIO:
        """By its name."""

    trainer, callback = NeMoTrainer(AsyncFinalizableCheckpointIO()), lightning.SealOnSave(Sealer(background=False))
    callback.setup(trainer)
    paths = [tmp_path / f"model--step={n}" for n in (7, 8)]
    for path in paths:
        Path(f"{path}-unfinished").touch()
        trainer.save_checkpoint(f"{path}.ckpt")
    assert not any(verify(path).sealed for path in paths)
    Path(f"{paths[0]}-unfinished").unlink()
    callback.teardown()
    assert [verify(path).sealed for path in paths] == [True, False]


def test_the_trainers_checkpoints_are_sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By rank 0, after all ranks have arrived; the others do not."""
    path = trainer(tmp_path)
    arrived: list[str] = []
    monkeypatch.setattr(group, "wait_for_all", lambda: arrived.append("here"))
    args, state = types.SimpleNamespace(output_dir=str(tmp_path)), types.SimpleNamespace(global_step=7)
    callback = huggingface.SealOnSave(Sealer(background=False))
    monkeypatch.setenv("RANK", "1")
    assert callback.on_save(args, state, "control", model=None) == "control"
    assert (verify(path).sealed, arrived) == (False, ["here"])
    monkeypatch.setenv("RANK", "0")
    callback.on_save(args, state, "control")
    assert (verify(path).sealed, verify(path).step) == (True, 7)
    assert resume_path(tmp_path) == str(path)


def test_the_trainers_loss_is_written_down(tmp_path: Path) -> None:
    """What it logs, evaluation apart, is what `latest --healthy` judges by."""
    args, state = types.SimpleNamespace(output_dir=str(tmp_path)), types.SimpleNamespace(global_step=5)
    callback = huggingface.SealOnSave(Sealer(background=False))
    callback.on_log(args, state, "control", logs={"eval_loss": math.nan})
    assert callback.health is None
    callback.on_log(args, state, "control", logs={"loss": math.nan, "grad_norm": 1.0, "learning_rate": 0.1})
    record, _ = health_log.read(tmp_path)
    assert record is not None
    assert [spell.why for spell in record.trend.spells] == ["loss nan at step 5"]


def test_the_callbacks_are_the_frameworks_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are instances of the class that the framework asks for, of the package that the program imported."""
    for name, kind in (("transformers", "TrainerCallback"), ("pytorch_lightning", "Callback")):
        module = types.ModuleType(name)
        setattr(module, kind, type(kind, (), {}))
        monkeypatch.setitem(sys.modules, name, module)
    assert isinstance(trainer_callback(), sys.modules["transformers"].TrainerCallback)
    assert isinstance(lightning_callback(), sys.modules["pytorch_lightning"].Callback)


def test_a_plain_loop(tmp_path: Path) -> None:
    """`seal_saved` takes what a save returned, seals it beside the training, and never raises."""
    path = tmp_path / "step_40"  # Accelerate's save_state returns the folder that it wrote
    path.mkdir()
    torch.save({"w": torch.ones(2)}, path / "model.pt")
    seal_saved(path)
    seal_saved(None)
    sealing._shared().wait()
    assert resume_path(tmp_path) == str(path)
    assert resume_tag(tmp_path) == "step_40"


def test_what_cannot_be_sealed_is_told_and_harms_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Missing, damaged: a line on stderr that names it."""
    (tmp_path / "step-3").mkdir()
    (tmp_path / "step-3" / "model.pt").write_bytes(b"")
    for name in ("nope", "step-3"):
        Sealer(background=False).seal(tmp_path / name)
    told = capsys.readouterr().err
    assert told.count("not sealed, training continues") == 2
    assert "nope: no such checkpoint" in told
    assert "model.pt: empty file" in told


def test_what_is_not_done_at_the_end_is_waited_for(tmp_path: Path) -> None:
    """The last checkpoint of a training that ends by itself is sealed, too."""
    (tmp_path / "step-3").mkdir()
    (tmp_path / "step-3" / "w.bin").write_bytes(b"w" * (30 << 20))
    program = "import sys; from slurm_robust.checkpoint.integrations import seal_saved; seal_saved(sys.argv[1])"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program, tmp_path / "step-3"], check=True, env=env, timeout=60)
    assert verify(tmp_path / "step-3").sealed


@pytest.mark.parametrize("make_one", [megatron, deepspeed])
def test_pin_latest(tmp_path: Path, make_one: Callable[[Path], Path], capsys: pytest.CaptureFixture[str]) -> None:
    """The framework's tracker points at what verifies; with nothing that does it stays, which is told."""
    path = make_one(tmp_path)
    (tracker,) = (one for one in tmp_path.iterdir() if one.is_file())
    before = tracker.read_text()
    tracker.write_text(before.replace("7", "9"))
    assert pin_latest(tmp_path) is None
    assert tracker.read_text() == before.replace("7", "9")
    assert "no seal" in capsys.readouterr().err
    checkpoint.seal(path)
    assert pin_latest(tmp_path) == str(path)
    assert tracker.read_text() == before


def test_pin_latest_is_rank_0s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others write nothing."""
    monkeypatch.setenv("SLURM_PROCID", "3")
    checkpoint.seal(megatron(tmp_path))
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("9")
    assert pin_latest(tmp_path) is None
    assert (tmp_path / "latest_checkpointed_iteration.txt").read_text() == "9"


def test_a_tracker_that_cannot_be_written_holds_nobody_up(
    make: Make, directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Plain folders have no tracker at all: told, and the program starts as it would have."""
    make(3)
    assert pin_latest(directory) is None
    assert "the tracker is unchanged" in capsys.readouterr().err
