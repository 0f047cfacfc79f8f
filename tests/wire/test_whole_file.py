"""A file is written whole or not at all, and nothing that was put in the way is written through."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from slurm_robust.wire import whole_file


def only(folder: Path) -> list[str]:
    """Names of what stands in the folder."""
    return sorted(path.name for path in folder.iterdir())


def test_the_new_content_takes_the_old_ones_place(tmp_path: Path) -> None:
    """Nothing else is left in the folder, and the answer is about the new file."""
    path = tmp_path / "state.json"
    path.write_bytes(b"old")
    written = whole_file.write(path, b"new", durable=True)
    assert (path.read_bytes(), only(tmp_path)) == (b"new", ["state.json"])
    assert (written.st_ino, written.st_size) == (path.stat().st_ino, 3)


@pytest.mark.parametrize(("mode", "found"), [(None, 0o640), (0o644, 0o644), (0o600, 0o600)])
def test_permissions_are_the_umasks_or_those_asked_for(tmp_path: Path, mode: int | None, found: int) -> None:
    """A service with a strict umask still writes a file that all may read."""
    before = os.umask(0o027)
    try:
        whole_file.write(tmp_path / "f", b"x", mode=mode)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == found


def test_a_name_is_relative_to_a_folder_that_was_opened(tmp_path: Path) -> None:
    """Whoever exchanges the folder's name afterwards gets nothing."""
    inside = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        whole_file.write("f", b"x", inside=inside)
    finally:
        os.close(inside)
    assert (tmp_path / "f").read_bytes() == b"x"


def test_a_full_disk_leaves_the_old_file_and_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second write of a large content fails."""
    path, calls = tmp_path / "f", iter(range(2))
    path.write_bytes(b"old")
    write = os.write

    def full(fd: int, data: memoryview) -> int:
        if next(calls):
            raise OSError(28, "No space left on device")
        return write(fd, data[:1])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        whole_file.write(path, b"new")
    assert (path.read_bytes(), only(tmp_path)) == (b"old", ["f"])


def test_what_is_refused_does_not_take_the_place(tmp_path: Path) -> None:
    """The check sees the new content, and any of its exceptions is passed on."""
    path = tmp_path / "rules.yaml"
    path.write_bytes(b"old")

    def refuse(new: str) -> None:
        raise ValueError(Path(new).read_text("utf-8"))

    with pytest.raises(ValueError, match="new"):
        whole_file.write(path, b"new", check=refuse)
    assert (path.read_bytes(), only(tmp_path)) == (b"old", ["rules.yaml"])


def test_a_temporary_name_that_somebody_holds_keeps_nothing_from_being_written(tmp_path: Path) -> None:
    """In a folder such as /tmp another user may have made it, and it cannot be removed: here it is a folder."""
    held = tmp_path / f".f.{os.getpid()}.tmp"
    held.mkdir()
    whole_file.write(tmp_path / "f", b"new")
    assert (tmp_path / "f").read_bytes() == b"new"
    assert {path.name for path in tmp_path.iterdir()} == {"f", held.name}


def test_links_in_the_way_are_replaced_and_not_followed(tmp_path: Path) -> None:
    """Somebody guessed the temporary name, and another link stands at the name itself."""
    victim, folder = tmp_path / "victim", tmp_path / "folder"
    victim.write_bytes(b"dear")
    folder.mkdir()
    for name in ("f", f".f.{os.getpid()}.tmp"):
        (folder / name).symlink_to(victim)
    whole_file.write(folder / "f", b"new")
    assert victim.read_bytes() == b"dear"
    assert ((folder / "f").read_bytes(), (folder / "f").is_symlink(), only(folder)) == (b"new", False, ["f"])
