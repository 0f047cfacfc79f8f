"""`seal --all`: what is complete is sealed, once; what may be being written, damaged or demoted is left, and told."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoint_material import megatron
from click.testing import CliRunner

from slurm_robust import checkpoint
from slurm_robust.checkpoint.base import files
from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.cli.commands.ckpt import command

Make = Callable[..., Path]


def age(path: Path) -> None:
    """As if nobody had written to it for a long time."""
    for one in (*path.rglob("*"), path):
        os.utime(one, (1, 1))


def test_what_is_complete_is_sealed(make: Make, directory: Path) -> None:
    """Old and whole: sealed. Old and damaged: refused. Fresh: waits. With a seal, even a wrong one: untouched."""
    good, empty, fresh, spoiled = make(1, sealed=False), make(2, sealed=False), make(3, sealed=False), make(4)
    (empty / "rank-00001.pt").write_bytes(b"")
    for path in (good, empty):
        age(path)
    os.truncate(spoiled / "rank-00000.pt", 3)
    before = (spoiled / "seal.json").read_bytes()
    done = checkpoint.seal_all(directory)
    assert [path for path, _ in done.sealed] == [good]
    assert [path for path, _ in done.waiting] == [fresh]
    assert done.refused == ((empty, f"{empty / 'rank-00001.pt'}: empty file"),)
    assert (spoiled / "seal.json").read_bytes() == before
    assert checkpoint.latest(directory).path == good
    assert checkpoint.seal_all(directory).sealed == ()


def test_a_bad_seal_and_a_demoted_one_are_not_sealed_anew(make: Make, directory: Path) -> None:
    """That would hide damage, and bring back what training died from."""
    broken, demoted = make(1), make(2, sealed=False)
    (broken / "seal.json").write_text("{")
    checkpoint.demote(demoted, "died twice")
    for path in (broken, demoted):
        age(path)
    done = checkpoint.seal_all(directory)
    assert (done.sealed, done.refused) == ((), ((demoted, "demoted: died twice"),))


def test_by_command(tmp_path: Path) -> None:
    """A Megatron tree as it is: waits, then is sealed, and `latest` finds it; 1 where something is damaged."""
    path = megatron(tmp_path)
    run = CliRunner().invoke
    waits = run(command, ["seal", str(tmp_path), "--all", "--json"])
    assert (waits.exit_code, [one["path"] for one in json.loads(waits.stdout)["waiting"]]) == (0, [str(path)])
    done = run(command, ["seal", str(tmp_path), "--all", "--settled", "0"])
    assert (done.exit_code, done.stdout.startswith(f"sealed   {path}: step 7, 8 files")) == (0, True)
    assert run(command, ["latest", str(tmp_path)]).stdout == f"{path}\n"
    (tmp_path / "iter_0000008").mkdir()
    bad = run(command, ["seal", str(tmp_path), "--all", "--settled", "0"])
    assert (bad.exit_code, bad.stdout.split(":")[0]) == (1, f"refused  {tmp_path / 'iter_0000008'}")


def test_nothing_there(tmp_path: Path) -> None:
    """A folder that is not there is an error: a typing mistake in a cron job must not look like success."""
    with pytest.raises(CheckpointError, match="no such folder"):
        checkpoint.seal_all(tmp_path / "nope")


def test_times_ahead_of_the_clock(make: Make, directory: Path) -> None:
    """A file server whose clock is wrong: told so, not 0 s ago for ever; `--settled 0` asks for no age at all."""
    path = make(1, sealed=False)
    for one in (*path.iterdir(), path):
        os.utime(one, (4e9, 4e9))
    ((_, why),) = checkpoint.seal_all(directory).waiting
    assert "ahead of this clock" in why
    assert [done for done, _ in checkpoint.seal_all(directory, settled_s=0).sealed] == [path]


def test_looking_is_no_writing(make: Make, directory: Path) -> None:
    """Somebody verifies every five minutes: what is not sealed settles all the same."""
    path = make(1, sealed=False)
    age(path)
    checkpoint.verify(path)
    assert checkpoint.latest(directory, unsealed=True).path == path
    assert [done for done, _ in checkpoint.seal_all(directory).sealed] == [path]


def test_what_is_sealed_is_not_read(make: Make, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep every ten minutes must not read a copied checkpoint each time: it has a seal, and that is all it asks."""
    shutil.move(make(5), directory / "old")
    shutil.copytree(directory / "old", directory / "step-00000005")
    shutil.rmtree(directory / "old")
    monkeypatch.setattr(files, "digest", lambda *_: pytest.fail("read"))
    assert checkpoint.seal_all(directory) == checkpoint.Swept()


def test_nothing_to_do_is_said(make: Make, directory: Path) -> None:
    """A person at the terminal sees that it looked."""
    make(1)
    done = CliRunner().invoke(command, ["seal", str(directory), "--all"])
    assert (done.exit_code, done.output) == (0, f"{directory}: no checkpoint without a seal\n")
