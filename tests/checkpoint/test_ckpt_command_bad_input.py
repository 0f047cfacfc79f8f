"""Whatever folder `srobust ckpt` is given: 0 verified, 1 not, 2 usage, 3 could not tell; and a line that names it."""

from __future__ import annotations

import errno
import io
import json
import os
import pickle
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from slurm_robust import checkpoint
from slurm_robust.cli.commands.ckpt import command

Make = Callable[..., Path]
NOBODY = 65534


def ckpt(*args: object) -> tuple[int, str]:
    """Exit code, and what stands on standard output and standard error."""
    result = CliRunner().invoke(command, [str(arg) for arg in args])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A folder that everybody may enter: pytest's own are closed to all but their owner."""
    path = Path(tempfile.mkdtemp(prefix="srobust-test-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def as_nobody() -> Iterator[Callable[..., tuple[int, str]]]:
    """`ckpt` without the rights of root, who may read everything."""

    def run(*args: object) -> tuple[int, str]:
        if os.geteuid() != 0:
            return ckpt(*args)
        os.seteuid(NOBODY)
        try:
            return ckpt(*args)
        finally:
            os.seteuid(0)

    return run


@pytest.mark.parametrize("verb", ["verify", "seal", "latest", "prune", "list"])
def test_missing(tmp_path: Path, verb: str) -> None:
    """A folder that is not there: 1, and named; listing it shows that there are none."""
    code, text = ckpt(verb, tmp_path / "nope", *(["--keep", 1] if verb == "prune" else []))
    assert code == (0 if verb in {"list", "prune"} else 1)
    assert "nope" in text or verb == "prune"


@pytest.mark.parametrize("verb", ["verify", "seal", "latest"])
def test_empty(tmp_path: Path, verb: str) -> None:
    """Nothing in it: 1."""
    (tmp_path / "step-1").mkdir()
    assert ckpt(verb, tmp_path / "step-1")[0] == 1


def test_foreign(tmp_path: Path) -> None:
    """Files of no known format: structure has nothing to say, `latest` does not take it, a seal covers every byte."""
    path = tmp_path / "step-4"
    path.mkdir()
    (path / "README").write_text("not a checkpoint")
    code, text = ckpt("verify", path)
    assert (code, "unknown format" in text, "srobust ckpt seal " in text) == (3, True, True)
    assert ckpt("latest", tmp_path)[0] == 1
    assert ckpt("seal", path)[0] == 0
    (path / "README").write_text("not a Checkpoint")
    assert ckpt("verify", path)[0] == 1


@pytest.mark.parametrize("left", [b"", b"{", b'{"version": 1', b"\0" * 300])
def test_half_written_seal(make: Make, left: bytes) -> None:
    """1, and the seal is what is wrong; `latest` passes it over."""
    path = make(3)
    (path / "seal.json").write_bytes(left)
    code, text = ckpt("verify", path)
    assert (code, "seal.json: the seal cannot be read" in text) == (1, True)
    assert ckpt("latest", path.parent)[0] == 1


def test_links(make: Make, tmp_path: Path) -> None:
    """A checkpoint behind a link is that checkpoint; one that leads nowhere is missing; a circle tells nothing."""
    path = make(3)
    link, lost, circle = (tmp_path / name for name in ("step-3", "step-4", "step-5"))
    link.symlink_to(path)
    lost.symlink_to("gone")
    circle.symlink_to(circle)
    assert ckpt("verify", link)[0] == 0
    assert ckpt("verify", lost)[0] == 1
    assert ckpt("verify", circle)[0] == 3


def test_a_link_in_a_circle_among_good_ones(make: Make) -> None:
    """It is passed over, whatever it is called, and harms nobody else."""
    path = make(3)
    for name in ("step-9", "current"):
        (path.parent / name).symlink_to(name)
    code, text = ckpt("latest", path.parent)
    assert (code, str(path) in text, "step-9: cannot be read" in text) == (0, True, True)
    assert ckpt("list", path.parent)[0] == 0
    assert ckpt("prune", path.parent, "--keep", 1)[0] == 0
    (path / "round").symlink_to("round")
    (path / "seal.json").unlink()
    assert ckpt("verify", path)[0] == 3
    assert ckpt("seal", path)[0] == 3


@pytest.mark.parametrize("other", ["pipe", "folder"])
def test_something_else_where_an_empty_file_was(make: Make, other: str) -> None:
    """A marker that was sealed with no bytes: what lies there now is never opened, which may take for ever."""
    path = make(3)
    (path / "done").write_bytes(b"")
    checkpoint.seal(path)
    (path / "done").unlink()
    if other == "pipe":
        os.mkfifo(path / "done")
    else:
        (path / "done").mkdir()
    for args in (("verify", path), ("latest", path.parent), ("latest", path.parent, "--deep")):
        code, text = ckpt(*args)
        assert (code, "done: not a regular file any more" in text) == (1, True), text


def test_none_that_can_be_read(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file server is away while a job starts: that is no folder without checkpoints, or training would start anew."""
    path, damaged = make(3), make(4)
    (damaged / "seal.json").write_text("{")
    real = Path.read_bytes

    def stale(self: Path) -> bytes:
        if self.parent == path:
            raise OSError(errno.ESTALE, "Stale file handle", str(self))
        return real(self)

    monkeypatch.setattr(Path, "read_bytes", stale)
    code, text = ckpt("latest", path.parent)
    assert (code, "step-00000003" in text, "Stale file handle" in text) == (3, True, True)
    good = make(2)
    code, text = ckpt("latest", path.parent)
    assert (code, str(good) in text) == (0, True)


NOT_TEXT = os.fsdecode(b"step-9\xff")


def test_names_that_are_no_text(make: Make) -> None:
    """A file with a name that no JSON can hold cannot be sealed; a folder is passed over; no exception."""
    path = make(3)
    (path.parent / NOT_TEXT).mkdir()
    for verb in (["latest"], ["list"], ["prune", "--keep", "1"], ["verify"], ["seal", "--all", "--settled", "0"]):
        for as_json in ([], ["--json"]):
            code, text = ckpt(*verb, path.parent, *as_json)
            assert code == (1 if verb[0] in ("verify", "seal") else 0), (verb, text)
            if as_json:
                json.loads(text.splitlines()[-1] if verb[0] == "verify" else text)
    (path / NOT_TEXT).write_bytes(b"x")
    assert ckpt("verify", path)[0] == 0, "the seal speaks of the others"
    (path / "seal.json").unlink()
    for verb in ("verify", "seal"):
        code, text = ckpt(verb, path)
        assert (code, "step-9?: a name that is not UTF-8" in text) == (1, True), text


def test_names_that_speak_to_the_terminal(make: Make) -> None:
    """A line stays one line, and no escape goes through; JSON has the name as it is."""
    path = make(3)
    evil = "we\nird\x1b[31m.pt"
    (path / evil).write_bytes(b"x" * 9)
    checkpoint.seal(path)
    os.truncate(path / evil, 3)
    for verb in ("verify", "list", "latest"):
        text = ckpt(verb, path if verb == "verify" else path.parent)[1]
        assert "we?ird?[31m.pt: 3 bytes" in text, text
        assert "\x1b" not in text
    assert json.loads(ckpt("verify", path, "--json")[1])["problems"][0]["file"] == evil


def test_unreadable(open_place: Path, as_nobody: Callable[..., tuple[int, str]]) -> None:
    """A file, a folder, a seal, a folder above that may not be read: nobody can tell, which is 3 and never 1."""
    path = open_place / "run" / "step-3"
    path.mkdir(parents=True)
    (path / "w.bin").write_bytes(b"weights")
    checkpoint.seal(path)
    assert as_nobody("verify", path)[0] == 0
    for closed in (path / "w.bin", path / "seal.json", path, path.parent):
        before = closed.stat().st_mode
        closed.chmod(0)
        code, text = as_nobody("verify", path)
        assert (code, "Permission denied" in text, str(path.parent) in text) == (3, True, True), closed
        closed.chmod(before)
    path.parent.chmod(0o111)
    assert as_nobody("latest", path.parent)[0] == 3
    assert as_nobody("prune", path.parent, "--keep", 1)[0] == 3
    path.parent.chmod(0o755)
    assert as_nobody("seal", path)[0] == 3, "no right to write there"


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/../../secret", "", "a\0b"])
def test_a_seal_that_climbs_out(make: Make, tmp_path: Path, name: str) -> None:
    """No file outside of the folder is ever read, compared or named as part of it."""
    path = make(3)
    seal = json.loads((path / "seal.json").read_text())
    seal["files"][0]["name"] = name
    (path / "seal.json").write_text(json.dumps(seal))
    code, text = ckpt("verify", path)
    assert (code, "is outside of the checkpoint" in text) == (1, True)
    assert ckpt("latest", path.parent)[0] == 1


class Bomb:
    """Runs something when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.marker,)


@pytest.mark.parametrize("name", ["model.pt", ".metadata", "common.pt", "mp_rank_00_model_states.pt", "x.ckpt"])
def test_no_pickle_is_loaded(tmp_path: Path, name: str) -> None:
    """Whatever a pickle would run is not run, by none of the formats."""
    path = tmp_path / "iter_0000007"
    path.mkdir()
    marker = tmp_path / "ran"
    with (path / name).open("wb") as file:
        for value in (0x1950A86A20F9469CFC6C, 1001, {}):  # how files of torch before 1.6 begin
            if name != ".metadata":
                pickle.dump(value, file, protocol=2)
        pickle.dump({"iteration": 7, "x": Bomb(marker)}, file, protocol=2)
        pickle.dump([], file, protocol=2)
    for args in (("verify", "--values"), ("seal", "--unchecked")):
        ckpt(*args, path)
    assert not marker.exists()


def test_a_mismatch_in_words(make: Make) -> None:
    """File, range of bytes and both digests, on the line that a person reads."""
    path = make(3)
    sealed = {file["name"]: file["xxh3_128"] for file in json.loads((path / "seal.json").read_text())["files"]}
    (path / "rank-00001.pt").write_bytes(b"x" * 7002)
    code, text = ckpt("verify", path)
    (line,) = [line for line in text.splitlines() if "rank-00001.pt" in line]
    assert code == 1
    assert sealed["rank-00001.pt"] in line
    assert "xxh3-128 " in line.split("sealed with")[0]
    assert "bytes 0 to 7001" in line


@pytest.mark.parametrize(
    "args",
    [
        ("seal", "x", "--all", "--step", "3"),
        ("seal", "x", "--all", "--unchecked"),
        ("seal", "x", "--settled", "-1", "--all"),
        ("latest",),
        ("verify", "x", "--nonsense"),
        ("nonsense",),
    ],
)
def test_wrong_usage(args: tuple[str, ...]) -> None:
    """2, before anything is looked at."""
    assert ckpt(*args)[0] == 2


def unreadable(monkeypatch: pytest.MonkeyPatch, name: str, *, from_byte: int = 0) -> None:
    """Reads of a file of that name, from a byte on, end like those of a bad sector: without a word of which file."""

    def bad(fd: int) -> None:
        if os.lseek(fd, 0, os.SEEK_CUR) >= from_byte and Path(f"/proc/self/fd/{fd}").readlink().name == name:
            raise OSError(errno.EIO, "Input/output error")

    real_readv, real_open = os.readv, io.open

    def readv(fd: int, buffers: Any) -> int:
        bad(fd)
        return real_readv(fd, buffers)

    class File(io.FileIO):
        """Whose reads end so."""

        def readinto(self, buffer: Any) -> int | None:
            bad(self.fileno())
            return super().readinto(buffer)

        def readall(self) -> bytes:
            bad(self.fileno())
            return super().readall()

    def opened(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        return io.BufferedReader(File(file)) if mode == "rb" else real_open(file, mode, *args, **options)

    monkeypatch.setattr(os, "readv", readv)
    monkeypatch.setattr(io, "open", opened)


@pytest.mark.parametrize("sealed", [True, False])
def test_a_bad_sector_names_the_file(make: Make, monkeypatch: pytest.MonkeyPatch, *, sealed: bool) -> None:
    """The kernel does not tell which of ten thousand files it was; the line does, and what to look at next."""
    path = make(3, sealed=sealed)
    unreadable(monkeypatch, "rank-00001.pt")
    for args in (("verify", path), ("seal", path), ("verify", path.parent)):
        code, text = ckpt(*args)
        assert (code, "step-00000003/rank-00001.pt" in text, "Input/output" in text) == (3, True, True), text
    code, text = ckpt("latest", path.parent, "--deep" if sealed else "--unsealed")
    assert (code, "rank-00001.pt" in text) == (3, True), text


def test_a_bad_sector_under_a_zips_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's zipfile says that it is no zip; nobody can tell, and that is what it says here."""
    torch.save({"w": torch.ones(5000)}, tmp_path / "step-3.pt")
    unreadable(monkeypatch, "step-3.pt", from_byte=(tmp_path / "step-3.pt").stat().st_size - 100)
    code, text = ckpt("verify", tmp_path / "step-3.pt")
    assert (code, "step-3.pt" in text, "Input/output" in text) == (3, True, True), text


def test_one_bad_sector_hides_no_other_damage(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder of checkpoints the others are verified, and told, also as JSON; what is known to be bad is 1."""
    for step in (1, 2, 3):
        make(step)
    directory = make(4).parent
    (directory / "step-00000003" / "rank-00001.pt").rename(directory / "step-00000003" / "unreadable.pt")
    checkpoint.seal(directory / "step-00000003")
    unreadable(monkeypatch, "unreadable.pt")
    code, text = ckpt("verify", directory, "--json")
    report = json.loads(text)
    assert (code, report["verified"], report["step"]) == (3, False, 4)
    assert [problem["file"] for problem in report["problems"]] == ["step-00000003"]
    assert "could not tell" in ckpt("verify", directory)[1]
    os.truncate(directory / "step-00000001" / "rank-00000.pt", 1)
    code, text = ckpt("verify", directory)
    assert (code, "step-00000001/rank-00000.pt: 1 bytes" in text, "cannot be read" in text) == (1, True, True)
    code, text = ckpt("verify", directory / "step-00000003", "--json")
    assert (code, json.loads(text)["verified"]) == (3, False)
