"""Orders are read as untrusted: whose they are, who could have written them, and what is in them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from slurm_robust.supervise.versions.code_orders import CodeOrder, OrderError, receive, send

ORDER = CodeOrder("12", 2, "now", 3600.0, 1000.0, "alice")
ME = os.getuid()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As the supervisor makes it."""
    path = tmp_path / "code"
    path.mkdir(mode=0o700)
    return path


def test_an_order_arrives_once(folder: Path) -> None:
    """The newest one, and then it is gone."""
    assert receive(folder, ME, "12") is None
    send(folder, CodeOrder("12", 1, "next-failure", 1.0, 1.0, "bob"))
    send(folder, ORDER)
    assert (folder / "order.json").stat().st_mode & 0o777 == 0o600
    assert receive(folder, ME, "12") == ORDER
    assert receive(folder, ME, "12") is None
    assert list(folder.iterdir()) == []


def test_no_folder_is_no_order(tmp_path: Path) -> None:
    """Also where a link stands in its place."""
    assert receive(tmp_path / "code", ME, "12") is None
    (tmp_path / "elsewhere").mkdir()
    send(tmp_path / "elsewhere", ORDER)
    (tmp_path / "code").symlink_to(tmp_path / "elsewhere")
    assert receive(tmp_path / "code", ME, "12") is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"number": 0}, "cannot be read"),
        ({"number": "2"}, "cannot be read"),
        ({"number": "../../etc"}, "cannot be read"),
        ({"when": "tomorrow"}, "cannot be read"),
        ({"within_s": 0}, "cannot be read"),
        ({"within_s": 1e300}, "cannot be read"),
        ({"by": "x" * 100}, "cannot be read"),
        ({"job": "13"}, "it is for job '13'"),
        ({"protocol": 2}, "of protocol 2"),
    ],
)
def test_malformed_orders_are_refused_and_gone(folder: Path, change: dict[str, object], words: str) -> None:
    """Each says why."""
    path = folder / "order.json"
    path.write_text(json.dumps({**asdict(ORDER), **change}))
    path.chmod(0o600)
    with pytest.raises(OrderError, match=words):
        receive(folder, ME, "12")
    assert not path.exists()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"job": "12"}', b"9" * 20_000])
def test_what_is_no_order_is_refused(folder: Path, content: bytes) -> None:
    """Half a file, another thing, too much of it."""
    path = folder / "order.json"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(OrderError):
        receive(folder, ME, "12")
    assert receive(folder, ME, "12") is None


def pipe(path: Path) -> None:
    """Nobody writes into it."""
    os.mkfifo(path, 0o600)


def link(path: Path) -> None:
    """To a right order."""
    send(path.parent.parent, ORDER)
    path.symlink_to(path.parent.parent / "order.json")


@pytest.mark.parametrize(("make", "words"), [(pipe, "not a plain file"), (link, "cannot be opened")])
def test_special_files_hold_nobody_up(folder: Path, make: Callable[[Path], None], words: str) -> None:
    """A pipe is not waited for, and a link not followed."""
    make(folder / "order.json")
    with pytest.raises(OrderError, match=words):
        receive(folder, ME, "12")
    assert receive(folder, ME, "12") is None


def test_a_folder_in_the_orders_place_is_refused(folder: Path) -> None:
    """It cannot be taken away, and is refused each time."""
    (folder / "order.json").mkdir(mode=0o700)
    for _ in range(2):
        with pytest.raises(OrderError, match="not a plain file"):
            receive(folder, ME, "12")


@pytest.mark.parametrize(("place", "words"), [("folder", "its folder can be"), ("order", "it can be written")])
def test_what_others_can_write_is_refused(folder: Path, place: str, words: str) -> None:
    """By the mode of the file, and of its folder."""
    send(folder, ORDER)
    (folder if place == "folder" else folder / "order.json").chmod(0o770)
    with pytest.raises(OrderError, match=words):
        receive(folder, ME, "12")


def test_an_order_of_somebody_else_is_refused(folder: Path) -> None:
    """The job's user, or root; nobody else."""
    send(folder, ORDER)
    if ME != 0:
        with pytest.raises(OrderError, match="not to the job's user"):
            receive(folder, ME + 1, "12")
        return
    assert receive(folder, 4242, "12") == ORDER, "root's counts for every job"
    send(folder, ORDER)
    os.chown(folder / "order.json", 4243, -1)
    with pytest.raises(OrderError, match="it belongs to uid 4243"):
        receive(folder, 4242, "12")
    send(folder, ORDER)
    os.chown(folder, 4243, -1)
    with pytest.raises(OrderError, match="its folder belongs to uid 4243"):
        receive(folder, 4242, "12")
