"""Frameworks' own trackers: read, told of where they point at nothing, pointed at a verified checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from checkpoint_material import deepspeed, lightning, megatron, trainer
from click.testing import CliRunner

from slurm_robust import checkpoint
from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.store.trackers import Tracker, pin, trackers
from slurm_robust.cli.commands.ckpt import command


def ckpt_json(*args: object) -> tuple[int, Any]:
    """Exit code and the object printed."""
    result = CliRunner().invoke(command, [*(str(arg) for arg in args), "--json"])
    return result.exit_code, json.loads(result.stdout)


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("latest_checkpointed_iteration.txt", "9", "points at iter_0000009, which is not there"),
        ("latest_checkpointed_iteration.txt", "", "contains '': not a checkpoint's name"),
        ("latest_checkpointed_iteration.txt", "../7", "contains '../7': not a checkpoint's name"),
        ("latest_checkpointed_iteration.txt", "7\n8", "contains '7\\n8': not a checkpoint's name"),
        ("latest_checkpointed_iteration.txt", "1" * 5000, f"contains '{'1' * 80}': not a checkpoint's name"),
        ("latest", "x" * 300, f"contains '{'x' * 80}': not a checkpoint's name"),
        ("latest", "a\0b", "contains 'a\\x00b': not a checkpoint's name"),
        ("latest", "global_step9", "points at global_step9, which is not there"),
        ("latest", "../../etc", "contains '../../etc': not a checkpoint's name"),
    ],
)
def test_a_tracker_that_points_nowhere(tmp_path: Path, name: str, text: str, problem: str) -> None:
    """`verify` of the folder says so, and is 1."""
    megatron(tmp_path)
    (tmp_path / "latest_checkpointed_iteration.txt").unlink()
    (tmp_path / name).write_text(text)
    assert [tracker.problem for tracker in trackers(tmp_path)] == [problem]
    code, report = ckpt_json("verify", tmp_path)
    assert (code, report["problems"]) == (1, [{"file": name, "what": problem}])
    checkpoint.seal(tmp_path / "iter_0000007")
    assert ckpt_json("latest", tmp_path, "--pin")[1]["pinned"] == [name]
    assert [tracker.problem for tracker in trackers(tmp_path)] == [""]


def test_somebodys_notes_are_no_tracker(tmp_path: Path) -> None:
    """A file called `latest` with a sentence in it."""
    (tmp_path / "latest").write_text("the run of Tuesday\n")
    assert trackers(tmp_path) == []


def test_megatron_is_pinned_to_the_newest_that_verifies(tmp_path: Path) -> None:
    """The newer one is damaged: the tracker is set back, whole in one rename, and no framework file else changes."""
    good = megatron(tmp_path)
    checkpoint.seal(good)
    (tmp_path / "iter_0000009").mkdir()
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("9")
    code, found = ckpt_json("latest", tmp_path, "--pin")
    assert (code, found["path"], found["pinned"]) == (0, str(good), ["latest_checkpointed_iteration.txt"])
    assert (tmp_path / "latest_checkpointed_iteration.txt").read_text() == "7"
    assert trackers(tmp_path) == [Tracker(name="latest_checkpointed_iteration.txt", target=good)]


def test_trackers_that_are_missing_are_made(tmp_path: Path) -> None:
    """By what the checkpoint is; read back they point at it."""
    for n, make in enumerate((megatron, deepspeed, lightning)):
        folder = tmp_path / str(n)
        folder.mkdir()
        path = make(folder)
        for name in ("latest", "latest_checkpointed_iteration.txt"):
            (folder / name).unlink(missing_ok=True)
        pin(folder, path)
        pin(folder, path)
        assert [(tracker.target, tracker.problem) for tracker in trackers(folder)] == [(path, "")]


def test_what_cannot_be_pinned(tmp_path: Path) -> None:
    """HF Trainer has no tracker, a `last.ckpt` that is a file is not overwritten, a name may not be Megatron's."""
    with pytest.raises(CheckpointError, match="resume_from_checkpoint"):
        pin(tmp_path, trainer(tmp_path))
    path = lightning(tmp_path)
    (tmp_path / "last.ckpt").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="not a link"):
        pin(tmp_path, path)
    assert (tmp_path / "last.ckpt").read_bytes() == b"x"
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("7")
    with pytest.raises(CheckpointError, match="its format has no such name"):
        pin(tmp_path, path)


def test_prune_leaves_what_a_tracker_points_at(tmp_path: Path) -> None:
    """The framework's next start looks for it."""
    old = megatron(tmp_path)
    checkpoint.seal(old)
    for step in (8, 9):
        path = tmp_path / f"iter_{step:07d}"
        path.mkdir()
        (path / "w").write_text("x")
        checkpoint.seal(path)
    done = checkpoint.prune(tmp_path, 1)
    assert [path.name for path in done.removed] == ["iter_0000008"]
    assert [path.name for path, _ in done.left] == ["iter_0000007"]
    pin(tmp_path, tmp_path / "iter_0000009")
    assert checkpoint.prune(tmp_path, 1).removed == (old,)
