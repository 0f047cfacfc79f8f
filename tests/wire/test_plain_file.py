"""A plain file is read; a link, a pipe or a folder at its name is refused at once."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from slurm_robust.wire import plain_file


def test_the_first_bytes_are_read(tmp_path: Path) -> None:
    """By its path, or by its name in an opened folder."""
    (tmp_path / "f").write_bytes(b"content")
    assert plain_file.read(tmp_path / "f", 4) == b"cont"
    inside = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        assert plain_file.read("f", 100, inside) == b"content"
    finally:
        os.close(inside)


@pytest.mark.parametrize(
    ("put", "code"), [("link", errno.ELOOP), ("pipe", errno.EINVAL), ("folder", errno.EINVAL), ("", errno.ENOENT)]
)
def test_anything_else_is_refused_by_its_name(tmp_path: Path, put: str, code: int) -> None:
    """A pipe that nobody writes to is not waited for."""
    path = tmp_path / "f"
    if put == "link":
        path.symlink_to("/etc/passwd")
    elif put == "pipe":
        os.mkfifo(path)
    elif put:
        path.mkdir()
    with pytest.raises(OSError, match=r"f'$") as refused:
        plain_file.read(path, 10)
    assert (refused.value.errno, refused.value.filename) == (code, str(path))
