"""The incident folder: the story, whole files, and a disk that is full."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from slurm_robust.supervise.incident_folder import IncidentFolder


def test_the_story_is_on_disk_and_on_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line for people, the same for tools."""
    IncidentFolder(tmp_path / "f").log_event("suspected", "silence", ranks=(1,))
    line = json.loads((tmp_path / "f" / "story.jsonl").read_text())
    assert (line["kind"], line["text"], line["ranks"]) == ("suspected", "silence", [1])
    assert "silence" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("mount") is None, reason="needs root to mount a small disk")
def test_a_full_disk_is_said_once_and_nothing_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Training goes on; the story is on stderr."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(disk)], check=False)
    if mounted.returncode != 0:
        pytest.skip("this machine does not let root mount a tmpfs")
    try:
        folder = IncidentFolder(disk / "f")
        folder.write("big", b"x" * 100_000)
        for _ in range(50):
            folder.log_event("note", "y" * 1000)
        err = capsys.readouterr().err
        assert err.count("cannot write") == 1
        assert err.count("y" * 1000) == 50
        assert not list(disk.rglob(".big*")), "no half-written file is left"
    finally:
        folder.close()  # it keeps the disk in use
        subprocess.run(["umount", str(disk)], check=True)


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file stands where the folder above it should be."""
    (tmp_path / "f").write_text("")
    folder = IncidentFolder(tmp_path / "f" / "g")
    folder.log_event("note", "hello")
    assert folder.write("x", "y") is None
    assert capsys.readouterr().err.count("cannot write") == 1


def test_a_folder_whose_name_is_taken_is_beside_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file stands there: ours has another name, which is said once."""
    (tmp_path / "f").write_text("")
    folder = IncidentFolder(tmp_path / "f")
    assert folder.write("x", "y") == tmp_path / "f.1" / "x"
    folder.log_event("note", "hello")
    assert capsys.readouterr().err.count("is used instead") == 1
    assert folder.read("x") == b"y"


def test_a_folder_that_was_removed_is_made_again(tmp_path: Path) -> None:
    """Somebody tidies up while the job runs."""
    folder = IncidentFolder(tmp_path / "f", quiet=True)
    folder.log_event("note", "first")
    shutil.rmtree(tmp_path / "f")
    folder.log_event("note", "second")
    assert "second" in (tmp_path / "f" / "story.jsonl").read_text()


def test_a_file_system_without_modes_sends_it_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is made there may be written by others: one try is left behind, not four."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    real = os.mkdir

    def mkdir(path: str, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        real(path, mode, dir_fd=dir_fd)
        if str(path).startswith(f"{tmp_path}/shared/"):
            Path(path).chmod(0o1777)  # as if it could not be closed

    (tmp_path / "shared").mkdir()
    monkeypatch.setattr(os, "mkdir", mkdir)
    folder = IncidentFolder(tmp_path / "shared" / "f", quiet=True)
    written = folder.write("x", "y")
    assert written is not None
    assert written.is_relative_to(tmp_path / "home" / ".local" / "state" / "slurm_robust")
    assert [path.name for path in (tmp_path / "shared").iterdir()] == ["f"]
