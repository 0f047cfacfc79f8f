"""Checkpoints to choose from, made without torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_robust import checkpoint

Make = Callable[..., Path]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A folder of checkpoints."""
    (tmp_path / "ckpt").mkdir()
    return tmp_path / "ckpt"


@pytest.fixture
def make(directory: Path) -> Make:
    """`make(step, sealed=True, **files)`: a checkpoint folder with two files, sealed or not."""

    def build(step: int, *, sealed: bool = True, content: bytes = b"weights" * 1000) -> Path:
        path = directory / f"step-{step:08d}"
        path.mkdir()
        for rank in range(2):
            (path / f"rank-{rank:05d}.pt").write_bytes(content + bytes([step % 256, rank]))
        if sealed:
            checkpoint.seal(path)
        return path

    return build
