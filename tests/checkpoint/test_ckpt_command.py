"""`srobust ckpt`: exit codes and JSON are what scripts rely on."""

from __future__ import annotations

import fractions
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_material import lightning, plain
from click.testing import CliRunner

from slurm_robust import checkpoint
from slurm_robust.cli.commands.ckpt import command

Make = Callable[..., Path]


def ckpt(*args: object) -> tuple[int, str]:
    """Exit code and standard output."""
    result = CliRunner().invoke(command, [str(arg) for arg in args])
    return result.exit_code, result.stdout


def ckpt_json(*args: object) -> tuple[int, Any]:
    """Exit code and the object printed."""
    code, text = ckpt(*args, "--json")
    return code, json.loads(text)


def test_verify_one(make: Make) -> None:
    """0 and no problems while whole; 1 and the file's name when not."""
    path = make(7)
    code, report = ckpt_json("verify", path)
    assert (code, report["verified"], report["sealed"], report["step"], report["problems"]) == (0, True, True, 7, [])
    assert (report["world_size"], report["formats"]) == (0, [])
    os.truncate(path / "rank-00000.pt", 3)
    code, report = ckpt_json("verify", path)
    assert (code, report["verified"], report["problems"][0]["file"]) == (1, False, "rank-00000.pt")
    assert "NOT verified" in ckpt("verify", path)[1]


def test_verify_a_folder_of_checkpoints(make: Make, directory: Path) -> None:
    """All are verified; the step is the newest good one's."""
    make(1)
    (make(2) / "rank-00001.pt").unlink()
    code, report = ckpt_json("verify", directory)
    assert (code, report["step"]) == (1, 1)
    assert report["problems"] == [{"file": "step-00000002/rank-00001.pt", "what": "missing"}]


def test_seal_then_verify(make: Make) -> None:
    """Of files that no format knows nothing can be told before, and every byte after."""
    path = make(3, sealed=False)
    assert ckpt_json("verify", path)[1]["sealed"] is False
    assert ckpt("verify", path)[0] == 3
    assert ckpt("seal", path)[0] == 0
    code, report = ckpt_json("verify", path)
    assert (code, report["sealed"]) == (0, True)


def test_seal_wants_a_step(directory: Path) -> None:
    """A name that tells no step needs --step."""
    (directory / "best.bin").write_bytes(b"x")
    assert ckpt("seal", directory / "best.bin")[0] == 1
    assert ckpt_json("seal", directory / "best.bin", "--step", 4)[1]["step"] == 4


def test_latest(make: Make, directory: Path) -> None:
    """The path alone on stdout, for scripts; 1 where there is none."""
    assert ckpt("latest", directory) == (1, "")
    good = make(1)
    make(2, sealed=False)
    assert ckpt("latest", directory) == (0, f"{good}\n")
    code, found = ckpt_json("latest", directory)
    assert (code, found["path"], found["step"]) == (0, str(good), 1)
    assert found["passed_over"][0]["why"].startswith("no seal")


def test_list(make: Make, directory: Path) -> None:
    """Newest first, each with its state."""
    make(1)
    make(2, sealed=False)
    _, listed = ckpt_json("list", directory)
    assert [(entry["step"], entry["problem"]) for entry in listed["checkpoints"]] == [(2, "no seal"), (1, "")]
    assert "sealed, unchanged" in ckpt("list", directory)[1]


def test_prune(make: Make, directory: Path) -> None:
    """Keeps N; --keep 0 is wrong usage."""
    for step in (1, 2, 3):
        make(step)
    assert ckpt("prune", directory, "--keep", 0)[0] == 2
    _, done = ckpt_json("prune", directory, "--keep", 2)
    assert [Path(path).name for path in done["removed"]] == ["step-00000001"]
    assert not (directory / "step-00000001").exists()


def test_what_cannot_be_read(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can tell: 3, not `bad`."""
    path = make(1)

    def refuse(*_: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "readv", refuse)
    assert ckpt("verify", path)[0] == 3


@pytest.mark.parametrize("args", [(), ("verify",), ("prune", "x"), ("seal", "x", "--step", "-1")])
def test_wrong_usage(args: tuple[str, ...]) -> None:
    """2, as click has it."""
    assert ckpt(*args)[0] == 2


def test_nothing_there(tmp_path: Path) -> None:
    """1: it is not verified."""
    assert ckpt("verify", tmp_path / "nope")[0] == 1


@pytest.mark.parametrize("name", ["seal", "verify", "latest", "list", "prune"])
def test_help_tells_the_exit_codes(name: str) -> None:
    """Each subcommand's help ends with them."""
    assert "could not tell" in ckpt(name, "--help")[1]


def test_one_checkpoint_where_a_folder_of_them_is_meant(make: Make) -> None:
    """What to type is said, for the level that was meant."""
    path = make(3)
    for verb in (["latest"], ["list"]):
        assert f"srobust ckpt latest {path.parent}\n" in CliRunner().invoke(command, [*verb, str(path)]).output
    (path / "seal.json").unlink()
    assert ckpt("seal", path, "--all")[1] == f"{path}: no checkpoint without a seal\n"
    checkpoint.seal(path)
    assert "without --all, this folder itself" in ckpt("seal", path, "--all")[1]


def everything_below(folder: Path) -> dict[str, tuple[int, int, int, int]]:
    """Every name below a folder, and its own: inode, size, and both times of change."""
    found = [folder, *folder.rglob("*")]
    stats = [(str(path.relative_to(folder)), path.lstat()) for path in found]
    return {name: (now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns) for name, now in stats}


@pytest.mark.parametrize(
    "words",
    [
        "verify .",
        "verify --values step-7",
        "verify step-00000005",
        "verify epoch=0-step=7.ckpt",
        "latest .",
        "latest --deep .",
        "latest --unsealed .",
        "latest --healthy .",
        "list .",
        "prune --keep 1 --dry-run .",
    ],
)
def test_looking_changes_nothing(make: Make, directory: Path, words: str, tmp_path: Path) -> None:
    """What only looks writes no file, and no folder's time of change moves: not there, not at home, not in /tmp.

    `seal --all` waits until nobody has written to a checkpoint for ten minutes. Before, each look wrote a file of ours
    into it, so that somebody who looked every five minutes kept it unsealed for ever.
    """
    plain(directory)
    lightning(directory)
    shutil.copytree(make(4), directory / "step-00000005")  # sealed, and copied since: its bytes are read
    (directory / "step-00000005" / "seal.json").write_bytes((directory / "step-00000004" / "seal.json").read_bytes())
    checkpoint.demote(make(6), "died twice")
    checkpoint.HealthLog(directory).observe(4, loss=1.0)
    (directory / "latest_checkpointed_iteration.txt").write_text("7")
    for name in ("home", "tmp"):
        (tmp_path / name).mkdir()
    before = everything_below(tmp_path)
    env = {**os.environ, "HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path / "tmp")}
    program = [sys.executable, "-m", "slurm_robust.cli.main", "ckpt", *words.split()]
    done = subprocess.run(program, cwd=directory, env=env, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stderr
    assert everything_below(tmp_path) == before


def test_a_file_that_nobody_can_judge(tmp_path: Path) -> None:
    """3, could not tell, and what to type; `seal` refuses it and says why."""
    path = tmp_path / "step-3.pt"
    torch.save({"part": fractions.Fraction(1, 3)}, path)
    code, text = ckpt("verify", path)
    assert (code, "loading it calls fractions.Fraction" in text) == (3, True)
    assert "if you know that it is complete: srobust ckpt seal --unchecked" in text
    assert "look at rights" not in text
    assert (ckpt("seal", path)[0], ckpt("seal", "--unchecked", path)[0]) == (1, 0)
    assert ckpt("verify", path)[0] == 0
