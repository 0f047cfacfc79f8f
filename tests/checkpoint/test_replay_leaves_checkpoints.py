"""A replay of the training, on a few nodes, leaves every byte of the training's checkpoints as it was."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from slurm_robust import checkpoint
from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.store import seals


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below it."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_replay_resumes_and_saves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, asynchronous: bool
) -> None:
    """The program is the training's own, unchanged: it saves, and records its loss."""
    model = torch.nn.Linear(3, 3)
    with checkpoint.Checkpointer(tmp_path, asynchronous=False) as own:
        assert own.save(5, {"model": model}, loss=1.0)
    before = contents(tmp_path)
    assert before
    monkeypatch.setenv("SROBUST_REPLAY", "1")
    with checkpoint.Checkpointer(tmp_path, asynchronous=asynchronous, keep=1) as replayed:
        state = {"model": torch.nn.Linear(3, 3)}
        assert replayed.load_latest(state) == 5
        replayed.prepare(state)
        for step in (6, 7):
            assert not replayed.save(step, state, loss=float("nan"))
        assert replayed.last_sealed is None
        assert not replayed.link.alive
    assert torch.equal(state["model"].weight, model.weight)
    assert capsys.readouterr().err.count("a replay saves no checkpoint") == 1
    assert not checkpoint.save(tmp_path, 8, {"a": 1})
    assert contents(tmp_path) == before


def test_a_replay_seals_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A framework's own save beside the training's checkpoints is never chosen for a resume."""
    folder = tmp_path / "step-00000009"
    folder.mkdir()
    torch.save({"a": torch.zeros(2)}, folder / "model.pt")
    monkeypatch.setenv("SROBUST_REPLAY", "1")
    with pytest.raises(CheckpointError, match="SROBUST_REPLAY=1: a replay saves no checkpoint, seals none"):
        seals.seal(folder, 9)
    monkeypatch.setenv("SROBUST_REPLAY", "0")
    assert seals.seal(folder, 9).step == 9
