"""The newest checkpoint that is sealed, whole and not demoted, and why newer ones are not it."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from slurm_robust import checkpoint
from slurm_robust.checkpoint.base import files
from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.store import find
from slurm_robust.checkpoint.store.find import entries, latest

Make = Callable[..., Path]


def test_the_highest_step_wins(make: Make, directory: Path) -> None:
    """The step counts, and not the order in which they were written."""
    make(300)
    newest = make(1000)
    make(20)
    found = latest(directory)
    assert (found.path, found.step, found.passed_over) == (newest, 1000, ())
    assert [entry.step for entry in entries(directory)] == [1000, 300, 20]


def test_nothing_to_resume_from(directory: Path) -> None:
    """An empty folder, or one that is not there yet, has none; that is no error."""
    assert latest(directory).path is None
    assert latest(directory / "later").path is None


def flip(path: Path) -> None:
    """One bit, in place, same size."""
    data = bytearray((path / "rank-00001.pt").read_bytes())
    data[100] ^= 1
    with (path / "rank-00001.pt").open("r+b") as file:
        file.write(data)


def cut(path: Path) -> None:
    """The last byte."""
    os.truncate(path / "rank-00001.pt", (path / "rank-00001.pt").stat().st_size - 1)


def same_size_new_file(path: Path) -> None:
    """Another file under the old name, with the old time of change."""
    where = path / "rank-00001.pt"
    stat = where.stat()
    (path / "new").write_bytes(b"x" * stat.st_size)
    os.utime(path / "new", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    (path / "new").replace(where)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "flipped bit": (flip, "bytes changed"),
    "truncated": (cut, "sealed with"),
    "replaced": (same_size_new_file, "bytes changed"),
    "zero bytes": (lambda path: os.truncate(path / "rank-00000.pt", 0), "0 bytes"),
    "shard missing": (lambda path: (path / "rank-00000.pt").unlink(), "missing"),
    "no seal": (lambda path: (path / "seal.json").unlink(), "did not finish"),
    "half a seal": (lambda path: os.truncate(path / "seal.json", 40), "cannot be read"),
    "demoted": (lambda path: checkpoint.demote(path, "died twice"), "demoted: died twice"),
}


def test_all_that_were_listed_are_gone(make: Make, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow file system: between the listing and the first seal, training saved and others pruned."""
    make(1)
    real = find.read_seal

    def slow(path: Path) -> object:
        if path.name == "step-00000001":
            shutil.rmtree(path, ignore_errors=True)
            if not (directory / "step-00000002").exists():
                make(2)
        return real(path)

    monkeypatch.setattr(find, "read_seal", slow)
    assert latest(directory).step == 2


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_bad_one_is_passed_over(make: Make, directory: Path, damage: str) -> None:
    """Whatever happened to the newest, the one before it is chosen, and the reason is said."""
    good = make(1)
    bad = make(2)
    hurt, why = DAMAGES[damage]
    hurt(bad)
    found = latest(directory)
    assert (found.path, found.step) == (good, 1)
    ((path, said),) = found.passed_over
    assert path == bad
    assert why in said


def test_an_unchanged_one_is_not_read(make: Make, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At a restart only sizes and times are looked at."""
    make(1)
    monkeypatch.setattr(files, "digest", lambda *_: pytest.fail("read"))
    assert latest(directory).step == 1


def test_a_copied_one_is_read_once(make: Make, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy has other inodes and times: it is read, found good, and remembered."""
    shutil.move(make(5), directory / "old")
    shutil.copytree(directory / "old", directory / "step-00000005")
    shutil.rmtree(directory / "old")
    assert latest(directory).step == 5
    monkeypatch.setattr(files, "digest", lambda *_: pytest.fail("read again"))
    assert latest(directory).step == 5


def test_deep_finds_what_the_times_do_not_tell(make: Make, directory: Path) -> None:
    """Bytes that changed under an unchanged time of change are found by reading them."""
    bad = make(3)
    stat = (bad / "rank-00001.pt").stat()
    flip(bad)
    os.utime(bad / "rank-00001.pt", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert latest(directory).step == 3
    assert latest(directory, deep=True).path is None


def test_deep_remembers(make: Make, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read back is not read a second time."""
    make(3)
    read: list[object] = []
    real = files.digest

    def counted(path: Path | int, on_bytes: files.OnBytes | None = None) -> str:
        read.append(path)
        return real(path, on_bytes)

    monkeypatch.setattr(files, "digest", counted)
    assert latest(directory, deep=True).step == 3
    assert sum(str(path).endswith(".pt") for path in read) == 2
    assert latest(directory, deep=True).step == 3
    assert sum(str(path).endswith(".pt") for path in read) == 2


def test_single_files_and_foreign_folders(directory: Path) -> None:
    """A file with its seal beside it is a checkpoint like any other; what is neither sealed nor a step is none."""
    (directory / "logs").mkdir()
    (directory / "notes.txt").write_text("hello")
    assert entries(directory) == []
    (directory / "model-step-7.pt").write_bytes(b"x" * 100)
    assert [(entry.step, entry.sealed) for entry in entries(directory)] == [(7, False)]
    assert latest(directory).path is None
    checkpoint.seal(directory / "model-step-7.pt")
    assert latest(directory).path == directory / "model-step-7.pt"
    os.truncate(directory / "model-step-7.pt", 50)
    assert latest(directory).path is None


def test_a_lightning_file_with_its_loss_in_its_name(directory: Path) -> None:
    """`seal --all` and `latest --unsealed` are not to overlook it."""
    path = directory / "epoch=0-step=300-val_loss=0.25.ckpt"
    torch.save({"pytorch-lightning_version": "2.5.0", "global_step": 300, "state_dict": {}}, path)
    assert latest(directory, unsealed=True).path == path
    assert [(one, seal.step) for one, seal in checkpoint.seal_all(directory, settled_s=0).sealed] == [(path, 300)]


@pytest.mark.parametrize("count", [10, 200])
def test_a_lookup_costs_one_look_a_file(directory: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """A `stat` of each file, and a few opens, however many; benchmarks/checkpoint.py has the time for 10,000."""
    for step in (1, 2):
        path = directory / f"step-{step:08d}"
        path.mkdir()
        for n in range(count):
            (path / f"shard-{n:05d}").write_bytes(b"x")
        checkpoint.seal(path)
    calls: list[str] = []

    def counted(module: object, name: str) -> None:
        real = getattr(module, name)

        def call(*args: Any, **options: Any) -> Any:
            if str(directory) in str(args[0]):
                calls.append(name)
            return real(*args, **options)

        monkeypatch.setattr(module, name, call)

    for module, name in ((os, "stat"), (os, "open"), (io, "open"), (os, "scandir"), (os, "listdir")):
        counted(module, name)
    assert latest(directory).step == 2
    assert count <= calls.count("stat") <= count + 10
    assert len(calls) - calls.count("stat") <= 10, calls


def test_a_folder_that_cannot_be_listed_is_an_error(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can say where training should resume: starting anew would throw the training away."""

    def refuse(_: object) -> object:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(CheckpointError, match="cannot be listed"):
        latest(directory)


def test_the_lookup_loads_no_torch(make: Make, directory: Path) -> None:
    """`srobust run` calls it before every start."""
    make(1)
    code = (
        "import sys; from slurm_robust import checkpoint; assert checkpoint.latest(sys.argv[1]).step == 1;"
        "print([name for name in ('torch', 'numpy', 'rich', 'yaml') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(directory)], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
