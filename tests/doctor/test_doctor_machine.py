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
from slurm_robust.doctor.advice import Severity

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="files of root can only be made by root")


@root_only
@pytest.mark.parametrize(
    ("owner", "mode", "level", "words"),
    [
        (0, 0o755, Severity.OK, "only root can change it"),
        (1000, 0o755, Severity.WRONG, "belongs to user 1000"),
        (0, 0o757, Severity.WRONG, "may be written by others"),
        (0, 0o644, Severity.WRONG, "is not executable"),
    ],
)
def test_scripts_are_root_s(tmp_path: Path, owner: int, mode: int, level: Severity, words: str) -> None:
    """Owner and mode of what slurmd runs."""
    script = tmp_path / "opt/prolog"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\n")
    script.chmod(mode)
    os.chown(script, owner, -1)
    found = machine.owned(Path("/"), str(script), run=True)
    assert found.level is level
    assert words in found.sentence
    assert bool(found.fix) is (level is Severity.WRONG)


@root_only
def test_a_folder_on_the_way_that_is_somebody_s(tmp_path: Path) -> None:
    """Who owns the folder puts another script there."""
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/prolog").write_text("")
    (tmp_path / "theirs/prolog").chmod(0o755)
    os.chown(tmp_path / "theirs", 1000, 1000)
    found = machine.owned(Path("/"), str(tmp_path / "theirs/prolog"), run=True)
    assert found.level is Severity.WRONG
    assert found.fix == f"chown root:root {tmp_path}/theirs; chmod go-w {tmp_path}/theirs"


@root_only
def test_a_link_in_somebody_s_folder(tmp_path: Path) -> None:
    """It leads to root's file today."""
    (tmp_path / "theirs").mkdir()
    (tmp_path / "prolog").write_text("")
    (tmp_path / "prolog").chmod(0o755)
    (tmp_path / "theirs/prolog").symlink_to(tmp_path / "prolog")
    os.chown(tmp_path / "theirs", 1000, 1000)
    assert machine.owned(Path("/"), str(tmp_path / "theirs/prolog"), run=True).level is Severity.WRONG
    assert machine.owned(Path("/"), str(tmp_path / "prolog"), run=True).level is Severity.OK


@root_only
def test_the_python_that_root_runs_is_root_s(tmp_path: Path) -> None:
    """The usual one, or what the file of settings names."""
    for name, text in (("opt/slurm_robust/bin/python", ""), ("etc/slurm_robust/env", ""), ("usr/mine", "")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    os.chown(tmp_path / "usr/mine", 1000, -1)

    def levels() -> dict[str, Severity]:
        return {advice.about: advice.level for advice in machine.check({}, None, tmp_path)}

    assert levels()["/opt/slurm_robust/bin/python"] is Severity.OK
    (tmp_path / "etc/slurm_robust/env").write_text('SROBUST_PYTHON="/usr/mine"\nSROBUST_CODE=/opt/slurm_robust\n')
    assert (levels()["/usr/mine"], levels()["/opt/slurm_robust"]) == (Severity.WRONG, Severity.OK)
    assert "/opt/slurm_robust/bin/python" not in levels()


def test_a_script_that_is_not_here_is_looked_at_elsewhere(tmp_path: Path) -> None:
    """The controller need not have the nodes' scripts."""
    found = machine.check({"Prolog": "/opt/none"}, None, tmp_path)
    assert (found[0].level, found[0].about) == (Severity.UNKNOWN, "/opt/none")


@pytest.mark.parametrize(
    ("scope", "granted", "level"),
    [
        (0, False, Severity.OK),
        (1, False, Severity.ADVICE),
        (1, True, Severity.OK),
        (2, False, Severity.WRONG),
        (2, True, Severity.OK),
        (3, True, Severity.WRONG),
        (None, False, Severity.UNKNOWN),
    ],
)
def test_yama(scope: int | None, granted: bool, level: Severity) -> None:
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
