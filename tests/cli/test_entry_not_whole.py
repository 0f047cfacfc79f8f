"""A `srobust` in an environment that lacks what its commands need, as after `pip install --no-deps`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_robust.cli.entry import whole_one

NOT_WHOLE = """
import sys
sys.modules["yaml"] = sys.modules["click"] = None
sys.argv[0] = sys.argv.pop(1)
from slurm_robust.cli.entry import main
main()
"""


def script(folder: Path, name: str, text: str) -> Path:
    """Write a program into this folder."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def type_in(path: list[Path], own: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Type the `srobust` of this folder, with these folders before the rest of the PATH."""
    searched = os.pathsep.join([*map(str, path), "/usr/bin", "/bin"])
    known = {**os.environ, "PATH": searched, "PYTHONPATH": os.pathsep.join(sys.path), **env}
    typed = [sys.executable, "-c", NOT_WHOLE, str(own / "srobust"), *words]
    return subprocess.run(typed, env=known, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("words", [("status", "--json"), ("run", "-n2", "python", "train.py")])
def test_the_sites_command_takes_its_place(words: tuple[str, ...], tmp_path: Path) -> None:
    """An activated environment comes first on the PATH, and must not take the site's command away."""
    script(tmp_path / "venv", "srobust", "exit 99")
    script(tmp_path / "site", "srobust", 'echo "the site: $*"; exit 7')
    done = type_in([tmp_path / "venv", tmp_path / "site"], tmp_path / "venv", *words)
    assert (done.returncode, done.stdout) == (7, f"the site: {' '.join(words)}\n")


def test_without_another_one_it_says_what_is_lacking(tmp_path: Path) -> None:
    """No traceback."""
    script(tmp_path / "venv", "srobust", "exit 99")
    done = type_in([tmp_path / "venv"], tmp_path / "venv", "status")
    assert done.returncode == 1
    assert "lacks yaml, click" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_launch_goes_on_without_it(tmp_path: Path) -> None:
    """Where the site has a robust.yaml, which cannot be read, the training runs under plain srun."""
    script(tmp_path / "venv", "srobust", "exit 99")
    script(tmp_path / "venv", "srun", 'echo "srun $*"; exit 9')
    site = tmp_path / "robust.yaml"
    site.write_text("mode: act\n")
    env = {"SLURM_JOB_ID": "5", "SROBUST_CONFIG": str(site)}
    done = type_in([tmp_path / "venv"], tmp_path / "venv", "run", "-n2", "true", **env)
    assert (done.returncode, done.stdout) == (9, "srun -n2 -- true\n"), done.stderr
    assert "not whole" in done.stderr


def test_two_that_are_not_whole_never_call_each_other(tmp_path: Path) -> None:
    """Each looks behind itself alone; one that is not on the PATH looks everywhere."""
    first, second = (script(tmp_path / name, "srobust", "") for name in ("a", "b"))
    path = f"{tmp_path}/a:{tmp_path}/b:{tmp_path}/a"
    assert whole_one(str(first), f"{tmp_path}/a:{tmp_path}/b") == str(second)
    assert whole_one(str(second), f"{tmp_path}/a:{tmp_path}/b") == ""
    assert whole_one(str(first), path) == ""
    assert whole_one(str(tmp_path / "c" / "srobust"), path) == str(first)
