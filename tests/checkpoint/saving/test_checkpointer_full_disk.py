"""A disk that is full, read-only or gone costs a save, never the training; and says so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import mounted_tmpfs
from worlds_server import in_worlds

from slurm_robust import checkpoint


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MiB: the state below fits once, not twice."""
    with mounted_tmpfs(tmp_path / "disk", "3m") as where:
        yield where


@pytest.mark.parametrize("asynchronous", [True, False], ids=["async", "sync"])
def test_a_full_disk(small_disk: Path, asynchronous: bool) -> None:
    """The second save fails with a word, and training goes on; once there is room, saves succeed again."""
    ((told,),) = in_worlds(f"""
import shutil
def fill(rank, directory):
    state = {{"tensors": {{"w": torch.randn(500_000)}}}}
    saver = Checkpointer(directory, asynchronous={asynchronous}, keep=0)
    found = []
    for number in (1, 2, 3):
        saver.save(number, state)
        found.append([saver.wait(), len(saver.failures)])
        if number == 2:
            for path in Path(directory).glob("step-00000002-*"):
                shutil.rmtree(path)
            Path(directory, "ballast").unlink(missing_ok=True)
            for path in Path(directory).glob("step-00000001-*"):
                shutil.rmtree(path)
    saver.close()
    return [found, saver.failures]
told(run(1, fill, {str(small_disk / "ckpt")!r}))
""")
    found, failures = told
    assert found == [[1, 0], [1, 1], [3, 1]]
    assert "step 2" in failures[0]
    assert "No space left on device" in failures[0]
    assert "df -h" in failures[0]
    assert checkpoint.latest(small_disk / "ckpt", deep=True).step == 3


@pytest.mark.parametrize("asynchronous", [True, False], ids=["async", "sync"])
def test_a_file_system_that_turns_read_only(small_disk: Path, asynchronous: bool) -> None:
    """As an NFS server or a RAID does in trouble: the save is lost, said so; writable again, the next one is sealed."""
    ((told,),) = in_worlds(f"""
import subprocess
def go_on(rank, directory, disk):
    state = {{"tensors": {{"w": torch.randn(1000)}}}}
    saver = Checkpointer(directory, asynchronous={asynchronous})
    found = []
    for number, how in ((1, "rw"), (2, "ro"), (3, "rw")):
        subprocess.run(["mount", "-o", f"remount,{{how}}", disk], check=True)
        saver.save(number, state)
        found.append([saver.wait(), len(saver.failures)])
    saver.close()
    return [found, saver.failures]
told(run(1, go_on, {str(small_disk / "ckpt")!r}, {str(small_disk)!r}))
""")
    found, failures = told
    assert found == [[1, 0], [1, 1], [3, 1]]
    assert "step 2" in failures[0]
    assert "Read-only file system" in failures[0]
    assert "permissions" in failures[0]
    assert checkpoint.latest(small_disk / "ckpt", deep=True).step == 3


def test_a_quota(tmp_path: Path) -> None:
    """Two saves are over it (the system's own words for it, put in its mouth): lost, said so, and nothing is left."""
    ((told,),) = in_worlds(f"""
from slurm_robust.checkpoint.saving.rank import persister_link as link
quota = '''
import errno
from slurm_robust.checkpoint.saving.shared import file_writer as writing
before, written = writing._write_all, 0
def write_all(fd, chunk):
    global written
    written += len(chunk)
    if 10_000_000 < written < 20_000_000:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
    before(fd, chunk)
import os
writing._write_all = write_all
'''
link.COMMAND[2] = link.COMMAND[2].replace("; from", f"; exec({{quota!r}}); from")
def go_on(rank, directory):
    state = {{"tensors": {{"w": torch.randn(2_300_000)}}}}
    saver = Checkpointer(directory)
    found = []
    for number in (1, 2, 3, 4):
        saver.save(number, state)
        found.append([saver.wait(), len(saver.failures)])
    saver.close()
    return [found, saver.failures]
told(run(1, go_on, "{tmp_path}/ckpt"))
""")
    found, failures = told
    assert found == [[1, 0], [1, 1], [1, 2], [4, 2]]
    assert "Disk quota exceeded" in failures[0]
    assert "lfs quota" in failures[0]
    assert not list(tmp_path.glob("ckpt/*/.*tmp"))


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    """Where checkpoints should go is a file, with two ranks: both go on, rank by rank told, nothing is sealed."""
    (tmp_path / "ckpt").write_text("not a folder")
    (ranks,) = in_worlds(f"""
def save(rank, directory):
    training = Training("ddp")
    saver = Checkpointer(directory)
    for number in (1, 2, 3):
        training.step(number)
        saver.save(number, training.state)
    sealed = saver.wait(20.0)
    saver.close()
    return [sealed, saver.failures]
told(run(2, save, "{tmp_path}/ckpt"))
""")
    for sealed, failures in ranks:
        assert sealed is None
        assert len(failures) == 3
        assert "cannot be written" in failures[0]


def test_overlap_skips_where_asked(tmp_path: Path) -> None:
    """With both buffers still being written a save is skipped by all ranks, and says so; `wait` loses none."""
    skipped, waited = in_worlds(f"""
from slurm_robust.checkpoint.saving.rank import persister_link as link
slow = ("; import time; from slurm_robust.checkpoint.saving.shared import file_writer as writing; "
        "writing.reached = lambda here: time.sleep(0.7) if here == 'file written' else None; main(")
link.COMMAND[2] = link.COMMAND[2].replace("; main(", slow)
def save(rank, directory, overlap):
    training = Training("ddp")
    with Checkpointer(directory, copying=CopyOptions(overlap=overlap), keep=0) as saver:
        saver.prepare(training.state)
        found = [saver.save(number, training.state) for number in range(1, 6)]
    return found
for overlap in ("skip", "wait"):
    told(run(2, save, f"{tmp_path}/{{overlap}}", overlap))
""")
    assert skipped[0] == skipped[1] == [True, True, False, False, False]
    assert waited[0] == waited[1] == [True] * 5
    assert [entry.step for entry in checkpoint.entries(tmp_path / "skip") if entry.sealed] == [2, 1]
    assert [entry.step for entry in checkpoint.entries(tmp_path / "wait") if entry.sealed] == [5, 4, 3, 2, 1]
