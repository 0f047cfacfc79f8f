from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from slurm_robust.cli.commands.devcluster import command, default_directory


@pytest.fixture
def folder() -> Iterator[Path]:
    """A path that a cluster may take."""
    with tempfile.TemporaryDirectory(prefix="dc-test-") as name:
        yield Path(name) / "c"


def call(*words: str) -> tuple[int, str]:
    """Exit code and output of `srobust devcluster WORDS…`."""
    result = CliRunner().invoke(command, list(words))
    return result.exit_code, result.output


@pytest.mark.slurm
def test_up_env_status_down(folder: Path) -> None:
    """The way of a newcomer: up, eval env, srun, status, down; and down again."""
    where = ("--dir", str(folder))
    try:
        code, text = call("up", "--nodes", "2", "--gpus-per-node", "4", *where)
        assert code == 0, text
        assert "2 nodes of 4 fake GPUs are ready" in text
        code, exports = call("env", *where)
        assert code == 0
        shell = f"{exports}\nsrun --immediate=10 -N2 --gres=gpu:4 sh -c 'echo $CUDA_VISIBLE_DEVICES'"
        shown = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, timeout=30, check=True)
        assert shown.stdout == "0,1,2,3\n0,1,2,3\n"
        code, text = call("status", "--json", *where)
        state = json.loads(text)
        assert code == 0
        assert [node["name"] for node in state["nodes"]] == ["n1", "n2"]
        assert state["slurmctld_pid"]
        assert state["daemon_pid"] is None
        code, text = call("status", *where)
        assert code == 0
        assert "srobustd   not running" in text
        code, text = call("up", *where)
        assert code == 1
        assert "srobust devcluster down" in text
    finally:
        code, text = call("down", *where)
    assert code == 0, text
    assert not folder.exists()
    assert call("down", *where)[0] == 0


def test_status_and_env_without_a_cluster(folder: Path) -> None:
    """They say what to type, and exit 1."""
    for word in ("status", "env"):
        code, text = call(word, "--dir", str(folder))
        assert code == 1
        assert "srobust devcluster up" in text
    assert call("down", "--dir", str(folder))[0] == 0


def test_a_folder_of_somebody_else_is_left_alone(folder: Path) -> None:
    """`down` on a folder with anything that no devcluster makes refuses, and removes nothing."""
    (folder / "log").mkdir(parents=True)
    (folder / "thesis.tex").write_text("x")
    code, text = call("down", "--dir", str(folder))
    assert code == 1
    assert "nothing in it was changed" in text
    assert (folder / "thesis.tex").exists()
    assert (folder / "log").exists()
    (folder / "thesis.tex").unlink()
    (folder / "etc").mkdir()
    (folder / "etc" / "slurm.conf").write_text("ClusterName=dev1234abcd\n")
    assert call("down", "--dir", str(folder))[0] == 0
    assert not folder.exists()


def test_a_foreign_file_is_no_record(folder: Path) -> None:
    """A cluster.json that is something else is an error, and nothing of that folder is removed."""
    folder.mkdir()
    (folder / "cluster.json").write_text('{"version": 99}')
    code, text = call("down", "--dir", str(folder))
    assert code == 1
    assert "not a devcluster" in text
    assert (folder / "cluster.json").exists()


def test_default_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's runtime folder, or one of their own under /tmp."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert default_directory() == Path("/run/user/7/srobust-devcluster")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert default_directory() == Path(f"/tmp/srobust-devcluster-{os.getuid()}")


def test_help_teaches() -> None:
    """The help shows commands that can be copied."""
    code, text = call("--help")
    assert code == 0
    assert 'eval "$(srobust devcluster env)"' in text
