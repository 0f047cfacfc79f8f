from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from slurm_robust.cli.commands.doctor import command
from slurm_robust.doctor import backend
from slurm_robust.doctor.advice import Severity

SHAPES = Path(__file__).parents[1] / "slurm" / "pyslurm_shapes"
SCONTROL = """#!/bin/sh
case "$*" in
--version) echo slurm 25.11.8 ;;
"show config") echo "ClusterName = devil" ;;
esac
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A site whose configuration chooses pyslurm, with the one of 25.11.2's shape and commands of that Slurm."""
    (tmp_path / "pyslurm.py").write_text((SHAPES / "objects_25_11.py").read_text())
    for name in ("scontrol", "squeue"):
        (tmp_path / name).write_text(SCONTROL)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "robust.yaml").write_text(f"slurm: {{backend: pyslurm, bin_dir: {tmp_path}}}\n")
    monkeypatch.setenv("STUB_CALLS", str(tmp_path / "calls"))
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_a_back_end_that_does_all_is_ok() -> None:
    """The commands, and a pyslurm that lacks nothing."""
    assert backend.check("commands", "", "", {})[0].sentence == "commands does what it should"
    assert backend.check("pyslurm", "25.11.2", "", {})[0].level is Severity.OK


def test_a_pyslurm_that_does_not_fit_is_wrong_and_one_that_lacks_a_name_is_advice() -> None:
    """Both name the cause and the two ways out."""
    (unfit,) = backend.check("pyslurm", "", "No module named 'pyslurm'", {})
    (lacking,) = backend.check("pyslurm", "25.11.2", "", {"jobs": "it has no Jobs.load"})
    assert (unfit.level, lacking.level) == (Severity.WRONG, Severity.ADVICE)
    assert "No module named 'pyslurm'" in unfit.sentence
    assert "jobs (it has no Jobs.load)" in lacking.sentence
    assert unfit.fix == lacking.fix
    assert "slurm.backend: commands" in unfit.fix


def test_the_back_end_its_version_and_what_goes_by_command_are_shown(site: Path) -> None:
    """In text, with the reasons under --all, and in JSON."""
    config = ["--config", str(site / "robust.yaml")]
    short, full = (CliRunner().invoke(command, [*config, *more]).output.splitlines() for more in ([], ["--all"]))
    assert short[0] == full[0] == "back end: pyslurm 25.11.2, Slurm 25.11.8"
    assert short[1].startswith("  by Slurm's commands, some only in part (--all says why): node, node_listing,")
    assert (
        "  by command: update_job where it clears: pyslurm does not pass an empty text on, and does not say so" in full
    )
    shown = json.loads(CliRunner().invoke(command, [*config, "--json"]).stdout)["backend"]
    assert (shown["name"], shown["version"], shown["slurm_version"], shown["unfit"]) == (
        "pyslurm",
        "25.11.2",
        "25.11.8",
        "",
    )
    assert {"call": "submit", "when": "", "why": "pyslurm does not read sbatch's options"} in shown["by_command"]


def test_a_call_in_which_pyslurm_fails_is_found(site: Path) -> None:
    """It is tried, since no name is missing."""
    with (site / "pyslurm.py").open("a") as module:
        module.write("\ndel _Config.cluster_name\n")
    found = CliRunner().invoke(command, ["--config", str(site / "robust.yaml"), "--json"])
    (advice,) = [one for one in json.loads(found.stdout)["findings"] if one["about"] == "slurm.backend"]
    assert advice["level"] == "advice"
    assert "cluster_name (pyslurm failed: AttributeError" in advice["sentence"]


def test_one_that_does_not_fit_is_wrong(site: Path) -> None:
    """The commands are the back end in use, and doctor says that something is wrong."""
    (site / "scontrol").write_text(SCONTROL.replace("25.11.8", "26.05.1"))
    found = CliRunner().invoke(command, ["--config", str(site / "robust.yaml")])
    assert found.output.splitlines()[0] == "back end: commands, since pyslurm does not fit 25.11.2, Slurm 26.05.1"
    assert "wrong    slurm.backend: pyslurm does not fit here" in found.output
    assert found.exit_code == 1
