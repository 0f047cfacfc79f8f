"""Room is made only where enough verified checkpoints stay."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_robust.checkpoint import demote
from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.find import latest
from slurm_robust.checkpoint.pruning import prune

Make = Callable[..., Path]


def names(paths: tuple[Path, ...]) -> list[int]:
    """Their steps."""
    return [int(path.name.removeprefix("step-")) for path in paths]


def test_the_newest_verified_stay(make: Make, directory: Path) -> None:
    """Bad ones do not count: with the two newest damaged, the two before them stay."""
    for step in range(1, 7):
        make(step)
    os.truncate(directory / "step-00000006" / "rank-00000.pt", 0)
    demote(directory / "step-00000005", "died twice")
    done = prune(directory, 2)
    assert names(done.kept) == [4, 3]
    assert names(done.removed) == [2, 1]
    assert names(tuple(path for path, _ in done.left)) == [6, 5]
    assert sorted(path.name for path in directory.iterdir()) == [f"step-{n:08d}" for n in (3, 4, 5, 6)]
    assert latest(directory).step == 4


def test_a_silent_corruption_does_not_cost_the_good_one(make: Make, directory: Path) -> None:
    """The newest rotted without a trace in its times: it is read before anything is removed."""
    make(1)
    bad = make(2) / "rank-00000.pt"
    stat = bad.stat()
    bad.write_bytes(b"x" * stat.st_size)
    os.utime(bad, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert prune(directory, 1).removed == ()
    assert latest(directory, deep=True).step == 1


def test_fewer_than_asked_for(make: Make, directory: Path) -> None:
    """Nothing is removed while there are not enough good ones, and never the last."""
    make(1)
    make(2, sealed=False)
    assert prune(directory, 2).removed == ()
    with pytest.raises(CheckpointError, match="never removed"):
        prune(directory, 0)


def test_a_writer_is_not_raced(make: Make, directory: Path) -> None:
    """An unfinished one that was written to lately stays, an old one goes; a newer one always stays."""
    fresh, stale = make(1, sealed=False), make(2, sealed=False)
    make(3)
    newer = make(4, sealed=False)
    for path in (*stale.iterdir(), stale, *newer.iterdir(), newer):
        os.utime(path, (1, 1))
    done = prune(directory, 1)
    assert done.removed == (stale,)
    assert fresh.exists()
    assert newer.exists()


def test_a_dry_run_removes_nothing(make: Make, directory: Path) -> None:
    """It says the same and does nothing."""
    for step in (1, 2):
        make(step)
    assert names(prune(directory, 1, dry_run=True).removed) == [1]
    assert (directory / "step-00000001").exists()


def test_what_a_killed_prune_left_goes(make: Make, directory: Path) -> None:
    """Half of a removed checkpoint is out of sight, and gone after the next prune."""
    make(1)
    (directory / ".srobust-pruning-step-00000000.1").mkdir()
    assert latest(directory).step == 1
    prune(directory, 1)
    assert not list(directory.glob(".srobust-pruning-*"))


def test_a_sealed_one_that_is_saved_again_is_not_raced(make: Make, directory: Path) -> None:
    """Files that its seal does not speak of, written lately: somebody writes it anew."""
    for step in (1, 2):
        make(step)
    (directory / "step-00000001" / "rank-00000.1.pt").write_bytes(b"new")
    done = prune(directory, 1)
    assert done.removed == ()
    assert [why for _, why in done.left] == ["not sealed, and written to lately"]
    assert prune(directory, 1, unfinished_after_s=0).removed == (directory / "step-00000001",)
