"""Whether a disk is still full is looked at, and not believed."""

from __future__ import annotations

import asyncio
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import mounted_tmpfs

from slurm_robust.supervise.incident import full_disk


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of 4 MiB."""
    with mounted_tmpfs(tmp_path / "disk", "4m") as disk:
        yield disk


def ask(
    named: Path | str = "", *, checkpoint: Path | None = None, directory: Path | str = "", command: str = ""
) -> str:
    """The answer."""
    return asyncio.run(full_disk.full(str(named), checkpoint, str(directory), shlex.split(command)))


def test_a_disk_that_cannot_take_another_checkpoint_is_full(small: Path) -> None:
    """It says which, how full, and what to type; once there is room again, nothing."""
    last = small / "step-5.pt"
    last.write_bytes(bytes(3 << 20))
    told = ask(checkpoint=last, directory=small)
    assert f"{small} is full (1 MiB of 4 MiB free, a checkpoint takes 3 MiB)" in told
    assert f"srobust ckpt prune {small} --keep 2" in told
    last.write_bytes(bytes(1 << 20))
    assert ask(checkpoint=last, directory=small) == ""


def test_a_path_that_ranks_named_is_looked_at_through_its_folder(small: Path) -> None:
    """The file itself may never have been made."""
    (small / "fill").write_bytes(bytes(3 << 20))
    assert f"{small} is full" in ask(small / "runs" / "a" / "events.log")


@pytest.mark.parametrize(
    "command",
    ["torchrun train.py --out_dir={}", "python train.py --save {}/ckpt", "bash -c 'exec python t.py {}/ckpt'"],
)
def test_the_folder_that_the_command_writes_to_is_looked_at(small: Path, command: str) -> None:
    """A program may say of a full disk nothing but that a stream broke. What it only reads may well be full."""
    (small / "ckpt").mkdir()
    (small / "fill").write_bytes(bytes(3 << 20))
    assert "is full" in ask(command=command.format(small))
    assert ask(command=f"python train.py --dataset {small}") == ""


def test_a_path_that_cannot_be_looked_at_hides_no_other(small: Path) -> None:
    """Somebody else's folder, a broken mount: the recovery goes on, and the next folder is looked at."""
    (small / "fill").write_bytes(bytes(3 << 20))
    assert f"{small} is full" in ask("/" + "x" * 300, directory=small)


def test_a_disk_with_room_is_not_full(tmp_path: Path) -> None:
    """Nothing is left behind by the trial."""
    if min(shutil.disk_usage(path).free for path in (tmp_path, Path.cwd())) < 1 << 30:
        pytest.skip("this machine's own disk is nearly full")
    assert ask(tmp_path / "none" / "x") == ""
    assert ask("/proc/self/none") == ""
    assert ask("relative", directory=tmp_path) == ""
    assert list(tmp_path.iterdir()) == []
