"""The build: what tells two installations of one version apart, without git."""

from __future__ import annotations

import shutil
from pathlib import Path

from click.testing import CliRunner

from slurm_robust import __version__
from slurm_robust.cli.main import cli
from slurm_robust.core import build

PACKAGE = Path(build.__file__).parents[1]


def test_it_is_that_of_the_files(tmp_path: Path) -> None:
    """The same for a copy anywhere, with or without compiled files; another one once a line differs."""
    copy = shutil.copytree(PACKAGE, tmp_path / "slurm_robust", ignore=shutil.ignore_patterns("__pycache__"))
    assert build.of(copy) == build.of(PACKAGE) == build.build()
    assert len(build.build()) == 8
    with (copy / "progress.py").open("a") as file:
        file.write("\n")
    assert build.of(copy) != build.build()


def test_the_command_says_it() -> None:
    """Beside the version."""
    said = CliRunner().invoke(cli, ["--version"]).output
    assert said == f"srobust, version {__version__}, build {build.build()}\n"
