"""An attack on a save: in a checkpoint folder that others may write, a link has the name of its temporary file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from other_user import ATTACKER, VICTIM, acting_as, as_user, home_of, needs_root, shared_folder

from slurm_robust.checkpoint.base import files
from slurm_robust.checkpoint.saving.shared import file_writer


@needs_root
@pytest.mark.parametrize(
    ("temporary", "write"),
    [
        (f".seal.json.{os.getpid()}.tmp", lambda folder: files.write_atomic(folder / "seal.json", b"{}")),
        (".rank-0.pt.tmp", lambda folder: file_writer.write_file(folder, "rank-0.pt", [memoryview(b"x")])),
    ],
    ids=["seal", "piece"],
)
def test_a_planted_link_is_not_written_through(tmp_path: Path, temporary: str, write: Callable[[Path], object]) -> None:
    """In a project's folder: what the link leads to stays as it was, and the file is saved."""
    folder, home = shared_folder(tmp_path / "shared", 0o2770), home_of(VICTIM, tmp_path / "home")
    bashrc = home / ".bashrc"
    bashrc.write_text("# mine\n")
    os.chown(bashrc, VICTIM, VICTIM)
    planted = [temporary] if "seal" in temporary else [f".rank-0.pt{w}.tmp" for w in file_writer.WRITERS]
    as_user(ATTACKER, lambda: [(folder / name).symlink_to(bashrc) for name in planted])
    with acting_as(VICTIM):
        write(folder)
    assert bashrc.read_text() == "# mine\n"
    saved = folder / ("seal.json" if "seal" in temporary else "rank-0.pt")
    assert not saved.is_symlink()
    assert saved.stat().st_size > 0
