"""Room is made only where enough verified checkpoints stay."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slurm_robust import checkpoint
from slurm_robust.checkpoint import demote, entries, pruning
from slurm_robust.checkpoint.base import files
from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.pruning import prune
from slurm_robust.checkpoint.store.find import latest
from slurm_robust.checkpoint.store.verification import verify

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


def test_what_goes_anyway_is_not_read(make: Make, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten old checkpoints of a terabyte each are removed at the price of reading the newest."""
    for step in range(1, 5):
        make(step)
    read: list[str] = []
    real = files.digest

    def counted(where: Path, *args: Any) -> str:
        read.append(where.parent.name)
        return real(where, *args)

    monkeypatch.setattr(files, "digest", counted)
    assert names(prune(directory, 1).removed) == [3, 2, 1]
    assert set(read) <= {"step-00000004"}
    assert read


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
    with subprocess.Popen(["true"]) as dead:
        pass
    here = socket.gethostname()
    for owner in (f"{here}.{dead.pid}", f"{here}.{os.getpid()}", "elsewhere.1"):
        (directory / f".srobust-pruning-step-00000000.{owner}").mkdir()
    assert latest(directory).step == 1
    prune(directory, 1)
    assert not list(directory.glob(f".srobust-pruning-*.{dead.pid}"))
    assert len(list(directory.glob(".srobust-pruning-*"))) == 2, "others may be at it"
    prune(directory, 1, unfinished_after_s=0)
    assert not list(directory.glob(".srobust-pruning-*"))


NEW_STEPS = itertools.count(100)
OTHERS = ("new step", "old step again", "seal anew", "demote", "lose", "damage", "prune")


def somebody_else(directory: Path, make: Make, what: str, steps: list[int]) -> bool:
    """What another process may do at any time; whether it began to write into a checkpoint that was there."""
    path = directory / f"step-{steps[-1]:08d}"
    if what == "new step":
        make(next(NEW_STEPS))
    elif what == "old step again":
        for step in steps:
            old = directory / f"step-{step:08d}"
            if old.exists():
                (old / "rank-00000.1.pt").write_bytes(b"being written")
                return True
    elif what == "prune":
        prune(directory, 1)
    elif not path.exists():
        return False
    elif what == "seal anew":
        with contextlib.suppress(CheckpointError):  # somebody has damaged it: its structure is looked at
            checkpoint.seal(path)
    elif what == "demote":
        demote(path, "died")
    elif what == "lose":
        shutil.rmtree(path)
    elif what == "damage":
        (path / "rank-00001.pt").write_bytes(b"")
    return False


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(1, 5),
    keep=st.integers(1, 3),
    when=st.dictionaries(st.integers(0, 6), st.sampled_from(OTHERS), max_size=3),
)
@example(count=3, keep=1, when={0: "damage", 1: "seal anew"})
def test_others_may_do_anything_meanwhile(
    tmp_path_factory: pytest.TempPathFactory, count: int, keep: int, when: dict[int, str]
) -> None:
    """Nothing that was being written is lost, and `keep` good ones stay, less those that somebody else spoiled."""
    directory = tmp_path_factory.mktemp("prune")

    def make(step: int) -> Path:
        path = directory / f"step-{step:08d}"
        path.mkdir()
        for rank in range(2):
            (path / f"rank-{rank:05d}.pt").write_bytes(bytes([step % 256, rank]) * 50)
        checkpoint.seal(path)
        return path

    steps = list(range(1, count + 1))
    for step in steps:
        make(step)
    points = 0
    spoiled = 0
    written = False

    def reached(point: str, path: Path) -> None:
        nonlocal points, spoiled, written
        what = when.get(points)
        points += 1
        if what is not None:
            spoiled += what in ("demote", "lose", "damage")
            own = pruning._reached
            pruning._reached = lambda *_: None  # the other's prune is not disturbed
            written |= somebody_else(directory, make, what, steps)
            pruning._reached = own

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pruning, "_reached", reached)
        done = prune(directory, keep)
    good = [entry for entry in entries(directory, deep=True) if entry.sealed and not entry.problem]
    floor = min(count, keep)
    if "prune" in when.values():
        floor = min(floor, 1)
    assert len(good) >= floor - spoiled
    assert all(not path.exists() for path in done.removed)
    if written and "lose" not in when.values() and "prune" not in when.values():
        assert list(directory.glob("*/rank-00000.1.pt")), "what somebody began to write was removed"
    shutil.rmtree(directory)


def test_a_sealed_one_that_is_saved_again_is_not_raced(make: Make, directory: Path) -> None:
    """Files that its seal does not speak of, written lately: somebody writes it anew."""
    for step in (1, 2):
        make(step)
    (directory / "step-00000001" / "rank-00000.1.pt").write_bytes(b"new")
    done = prune(directory, 1)
    assert done.removed == ()
    assert [why for _, why in done.left] == ["not sealed, and modified recently"]
    assert prune(directory, 1, unfinished_after_s=0).removed == (directory / "step-00000001",)


@pytest.mark.parametrize("point", ["about to remove", "out of sight"])
def test_what_is_pinned_meanwhile_stays(
    make: Make, directory: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """Reading takes minutes; a tracker that is made to point at an old one in between is what a start looks for."""
    for step in (1, 2):
        make(step).rename(directory / f"iter_{step:07d}")
    old, tracker = directory / "iter_0000001", directory / "latest_checkpointed_iteration.txt"
    tracker.write_text("2")
    monkeypatch.setattr(pruning, "_reached", lambda at, _: tracker.write_text("1") if at == point else None)
    done = prune(directory, 1)
    assert done.removed == ()
    assert [(path, "points at it" in why) for path, why in done.left] == [(old, True)]
    assert verify(old).verified


def test_one_that_cannot_be_looked_at_stays(make: Make, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stale handle in one folder: it stays, and what is old and can be seen goes."""
    for step in (1, 2, 3):
        make(step)
    real = Path.lstat

    def stale(path: Path) -> os.stat_result:
        if "step-00000001" in path.name:
            raise OSError(errno.ESTALE, "Stale file handle", str(path))
        return real(path)

    monkeypatch.setattr(Path, "lstat", stale)
    done = prune(directory, 1)
    assert names(done.removed) == [2]
    assert [(path.name, "Stale" in why) for path, why in done.left] == [("step-00000001", True)]


def test_one_that_cannot_be_removed_holds_up_no_other(
    make: Make, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On NFS a file that somebody reads stays behind under a new name: told, once the others are gone."""
    for step in (1, 2, 3):
        make(step)
    real = shutil.rmtree

    def busy(path: Path, **options: Any) -> None:
        if "step-00000002" in path.name:
            raise OSError(errno.EBUSY, "Device or resource busy", str(path))
        real(path, **options)

    monkeypatch.setattr(shutil, "rmtree", busy)
    with pytest.raises(CheckpointError, match=r"srobust-pruning-step-00000002.*cannot be removed.*the next prune"):
        prune(directory, 1)
    assert [path.name for path in directory.iterdir() if not path.name.startswith(".")] == ["step-00000003"]


def test_a_link_to_one_of_them_is_no_other_one(make: Make, directory: Path) -> None:
    """NeMo's `-last` beside what it leads to: two are kept, not one and its link, and the link stays as it is."""
    for step in (1, 2, 3):
        make(step)
    (directory / "step-00000003-last").symlink_to("step-00000003")
    (directory / "last.ckpt").symlink_to("step-00000002")
    done = prune(directory, 2)
    assert (names(done.kept), names(done.removed)) == ([3, 2], [1])
    assert latest(directory).path == directory / "step-00000003"
    assert sorted(path.name for path in directory.iterdir()) == [
        "last.ckpt", "step-00000002", "step-00000003", "step-00000003-last"
    ]  # fmt: skip


def test_a_link_that_leads_out_is_not_removed(make: Make, directory: Path, tmp_path: Path) -> None:
    """It may be the old scratch, still in use by others."""
    make(1).rename(tmp_path / "elsewhere")
    (directory / "step-00000001").symlink_to(tmp_path / "elsewhere")
    make(2)
    done = prune(directory, 1)
    assert (done.removed, [("a link to another folder" in why) for _, why in done.left]) == ((), [True])
    assert latest(tmp_path).path is None or (tmp_path / "elsewhere").exists()


def test_one_that_somebody_else_removes_meanwhile(make: Make, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two prunes at once: the later one finds it gone, which is no failure."""
    for step in (1, 2):
        make(step)
    real = Path.rename

    def rename(path: Path, to: Path) -> Path:
        shutil.rmtree(path)
        return real(path, to)

    monkeypatch.setattr(Path, "rename", rename)
    done = prune(directory, 1)
    assert [why for _, why in done.left] == ["another process removed it"]
