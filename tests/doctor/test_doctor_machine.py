from __future__ import annotations

import json
import os
import struct
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from slurm_robust.cli.main import cli
from slurm_robust.devcluster.cluster import DevCluster, Spec
from slurm_robust.doctor import machine
from slurm_robust.doctor.advice import Level

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="files of root can only be made by root")


@root_only
@pytest.mark.parametrize(
    ("owner", "mode", "level", "words"),
    [
        (0, 0o755, Level.OK, "root's own"),
        (1000, 0o755, Level.WRONG, "belongs to user 1000"),
        (0, 0o757, Level.WRONG, "may be written by others"),
        (0, 0o644, Level.WRONG, "is not executable"),
    ],
)
def test_scripts_are_root_s(tmp_path: Path, owner: int, mode: int, level: Level, words: str) -> None:
    """Owner and mode of what slurmd runs."""
    script = tmp_path / "opt/prolog"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\n")
    script.chmod(mode)
    os.chown(script, owner, -1)
    found = machine.owned(Path("/"), str(script), run=True)
    assert found.level is level
    assert words in found.sentence
    assert bool(found.fix) is (level is Level.WRONG)


@root_only
def test_a_folder_on_the_way_that_is_somebody_s(tmp_path: Path) -> None:
    """Who owns the folder puts another script there."""
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/prolog").write_text("")
    (tmp_path / "theirs/prolog").chmod(0o755)
    os.chown(tmp_path / "theirs", 1000, 1000)
    found = machine.owned(Path("/"), str(tmp_path / "theirs/prolog"), run=True)
    assert found.level is Level.WRONG
    assert found.fix == f"chown root:root {tmp_path}/theirs; chmod go-w {tmp_path}/theirs"


def test_a_script_that_is_not_here_is_looked_at_elsewhere(tmp_path: Path) -> None:
    """The controller need not have the nodes' scripts."""
    found = machine.look({"Prolog": "/opt/none"}, None, tmp_path)
    assert (found[0].level, found[0].about) == (Level.UNKNOWN, "/opt/none")


@pytest.mark.parametrize(
    ("scope", "granted", "level"),
    [
        (0, False, Level.OK),
        (1, False, Level.ADVICE),
        (1, True, Level.OK),
        (2, False, Level.WRONG),
        (2, True, Level.OK),
        (3, True, Level.WRONG),
        (None, False, Level.UNKNOWN),
    ],
)
def test_yama(scope: int | None, granted: bool, level: Level) -> None:
    """Each scope (kernel's Yama.rst), with and without the capability on py-spy."""
    assert machine.ptrace(scope, granted).level is level


@pytest.mark.parametrize(
    ("text", "scope"), [(b"1\n", 1), (b"", None), (b"\xff", None), (b"12345678999", 12345678), (None, 0)]
)
def test_the_scope_is_read(tmp_path: Path, text: bytes | None, scope: int | None) -> None:
    """A kernel without Yama has no such file; garbage is unknown."""
    path = tmp_path / "proc/sys/kernel/yama/ptrace_scope"
    path.parent.mkdir(parents=True)
    if text is not None:
        path.write_bytes(text)
    assert machine._scope(tmp_path) == scope


@pytest.mark.parametrize(
    ("raw", "may"),
    [
        (struct.pack("<IIIII", 0x02000001, 1 << 19, 0, 0, 0), True),
        (struct.pack("<IIIII", 0x02000000, 1 << 19, 0, 0, 0), False),  # permitted, not effective
        (struct.pack("<IIIII", 0x02000001, 1 << 7, 0, 0, 0), False),
        (b"\x01", False),
    ],
)
def test_file_capabilities_are_read(raw: bytes, may: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """capabilities(7): effective bit and CAP_SYS_PTRACE of the extended attribute."""
    monkeypatch.setattr(os, "getxattr", lambda *a: raw)
    assert machine.py_spy_may(sys.executable) is may


def test_without_slurm_the_machine_is_told_and_the_code_is_3(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Slurm cannot be asked: said on stderr, exit 3, and JSON all the same."""
    config = tmp_path / "robust.yaml"
    config.write_text(f"slurm: {{bin_dir: {tmp_path}}}\n")
    done = CliRunner().invoke(cli, ["doctor", "--config", str(config), "--json"])
    said = json.loads(done.stdout)
    assert (done.exit_code, said["slurm"]) == (3, False)
    assert said["problem"]
    assert {"level", "about", "sentence", "fix"} == set(said["findings"][0])


def test_a_broken_configuration_is_2(tmp_path: Path) -> None:
    """And names the key."""
    (tmp_path / "robust.yaml").write_text("nodecheck: {fresh: 3}\n")
    done = CliRunner().invoke(cli, ["doctor", "--config", str(tmp_path / "robust.yaml")])
    assert done.exit_code == 2
    assert "nodecheck.fresh" in done.output


@pytest.mark.slurm
def test_on_a_real_slurm() -> None:
    """A devcluster is well but for advice; one without DeferBatch and with a code of ours in RequeueExit is not."""
    for extra, wrong in (("", set()), ("PrologFlags=Alloc\nRequeueExit=93", {"PrologFlags", "RequeueExit"})):
        cluster = DevCluster.up(Spec(nodes=1, gpus_per_node=0, slurm_conf_extra=extra))
        try:
            argv = [sys.executable, "-m", "slurm_robust.cli.main", "doctor", "--json"]
            done = cluster.run(argv, check=False)
            said = json.loads(done.stdout)
            about = {f["about"] for f in said["findings"] if f["level"] == "wrong" and not f["about"].startswith("/")}
            assert about - {"kernel.yama.ptrace_scope"} == wrong
            assert done.returncode == (1 if any(f["level"] == "wrong" for f in said["findings"]) else 0)
        finally:
            cluster.down()
