"""What becomes of a real folder in a snapshot: git, secrets, links, sockets, large files."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from slurm_robust.supervise.versions import selection, snapshot
from slurm_robust.supervise.versions.snapshot import Limits, SnapshotError
from slurm_robust.supervise.versions.version_folder import CodeVersion, Origin, VersionFolder, not_part

LIMITS = Limits(size_bytes=1 << 20, files=50, within_s=30.0)


def write(folder: Path, files: dict[str, str]) -> None:
    """Files by their paths."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def git(folder: Path, *words: str) -> None:
    """A command of git, whatever the user's own configuration is."""
    who = ["-c", "user.name=n", "-c", "user.email=e@x", "-c", "init.defaultBranch=main"]
    env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    subprocess.run(["git", *who, "-C", str(folder), *words], check=True, capture_output=True, env=env)


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A folder with two modules."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text("print(1)\n")
    write(folder, {"pkg/model.py": "x = 1\n"})
    (folder / "pkg" / "run.sh").write_text("#!/bin/sh\n")
    (folder / "pkg" / "run.sh").chmod(0o775)
    return folder


@pytest.fixture
def versions(tmp_path: Path) -> VersionFolder:
    """The versions of a job."""
    return VersionFolder(tmp_path / "slurm-robust-1")


def take(versions: VersionFolder, folder: Path, **more: object) -> CodeVersion:
    """A snapshot of it."""
    return versions.take(Origin(folder, "alice", **more), LIMITS)  # type: ignore[arg-type]


def test_without_git_all_files_are_copied(code: Path, versions: VersionFolder) -> None:
    """An edit in place, as some editors write, does not reach the snapshot; its files are read-only, and private."""
    version = take(versions, code)
    snapshot = versions.snapshot(version.number)
    with (code / "train.py").open("r+") as f:
        f.write("print(2)")
    assert (snapshot / "train.py").read_text() == "print(1)\n"
    assert (version.number, version.files, version.commit) == (1, 3, "")
    assert (snapshot / "train.py").stat().st_mode & 0o777 == 0o444
    assert (snapshot / "pkg" / "run.sh").stat().st_mode & 0o777 == 0o555
    assert (snapshot / "train.py").stat().st_nlink == 1
    assert versions.path.stat().st_mode & 0o777 == 0o700
    assert versions.damage(1) == ""


def test_git_says_what_is_code(code: Path, versions: VersionFolder) -> None:
    """Tracked files as they are now, and new source; data, outputs and what git ignores stay in the folder."""
    (code / ".gitignore").write_text("data/\n*.log\n")
    (code / "gone.py").write_text("")
    git(code, "init")
    git(code, "add", ".")
    git(code, "commit", "-m", "x")
    (code / "train.py").write_text("print('modified')\n")
    (code / "gone.py").unlink()
    (code / "new.py").write_text("y = 1\n")
    (code / "notes.bin").write_text("z")
    others = ("data/a.bin", "run.log", "outputs/step/metrics.json", "tool/run.py", "tool/big.dat")
    write(code, dict.fromkeys(others, "1"))
    version = take(versions, code)
    files = versions.digests(1)
    assert set(files) == {".gitignore", "train.py", "pkg/model.py", "pkg/run.sh", "new.py", "tool/run.py"}
    assert set(version.shared) == {"data", "run.log", "outputs", "notes.bin", "tool/big.dat"}
    assert version.left_out == {}, "git does not list its own folder"
    assert len(version.commit) == 12
    snapshot = versions.snapshot(1)
    assert (snapshot / "train.py").read_text() == "print('modified')\n"
    assert not (snapshot / ".git").exists()
    assert (snapshot / "data" / "a.bin").read_text() == "1", "reached by a link"
    assert "not part of the version: data, notes.bin, outputs" in not_part(version)


def test_a_folder_in_a_repository_and_a_submodule_are_read_by_git_too(code: Path, versions: VersionFolder) -> None:
    """Only what lies in the folder counts; a repository within it is code as well."""
    inner = code / "pkg" / "third"
    inner.mkdir()
    (inner / "lib.py").write_text("")
    (inner / ".gitignore").write_text("build/\n")
    (inner / "build").mkdir()
    (inner / "build" / "o.bin").write_text("")
    for folder in (inner, code):
        git(folder, "init")
        git(folder, "add", ".")
        git(folder, "commit", "-m", "x")
    version = take(versions, code / "pkg")
    assert set(versions.digests(1)) == {"model.py", "run.sh", "third/lib.py", "third/.gitignore"}
    assert set(version.shared) == {"third/build"}


def test_sockets_pipes_and_by_products_are_left_out_and_named(code: Path, versions: VersionFolder) -> None:
    """Each with the reason; secrets are not copied either, and templates of secrets are none."""
    write(code, {".env": "TOKEN=1", ".env.example": "TOKEN=", "server.pem": "k", "id_rsa": "k", ".git/config": ""})
    write(code, {"pkg/__pycache__/m.pyc": "", "slurm-robust-7/story.jsonl": "", "slurm-7.out": ""})
    os.mkfifo(code / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        here = Path.cwd()
        os.chdir(code)
        listener.bind("sock")
        os.chdir(here)
        version = take(versions, code)
    reasons = selection.by_reason(version.left_out)
    assert set(version.shared) == {".env", "server.pem", "id_rsa"}
    assert reasons["a socket"] == ["sock"]
    assert reasons["a named pipe"] == ["pipe"]
    assert reasons["the repository itself"] == [".git"]
    assert {"pkg/__pycache__", "slurm-robust-7", "slurm-7.out"} <= set(reasons["a by-product"])
    snapshot = versions.snapshot(1)
    assert (snapshot / ".env.example").exists()
    assert not any((snapshot / name).exists() for name in ("sock", "pipe", "slurm-robust-7"))
    assert (snapshot / ".env").readlink() == code / ".env", "the program finds it, and it is not copied"
    assert "not part of the version: .env, id_rsa, server.pem" in not_part(version)


@pytest.mark.parametrize("kind", ["link", "folder"])
def test_a_place_that_somebody_else_has_made_is_not_used(
    code: Path, versions: VersionFolder, tmp_path: Path, kind: str
) -> None:
    """The incident folder may be open to others: the code goes into a folder of our own only."""
    versions.path.parent.mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    if kind == "link":
        versions.path.symlink_to(elsewhere)
    else:
        versions.path.mkdir()
        if os.geteuid() != 0:
            pytest.skip("needs root, to make a folder of somebody else")
        os.chown(versions.path, 4242, -1)
    with pytest.raises(SnapshotError, match="not a folder of yours"):
        take(versions, code)
    assert [*elsewhere.iterdir(), *versions.path.iterdir()] == []


def test_names_that_no_list_can_hold_are_left_out(code: Path, versions: VersionFolder) -> None:
    """They are told in another form."""
    (code / "two\nlines.py").write_text("")
    (code / os.fsdecode(b"latin-\xe9.py")).write_text("")
    version = take(versions, code)
    assert set(version.left_out) == {"'two\\nlines.py'", "'latin-\\udce9.py'"}
    assert versions.damage(1) == ""


def test_links_are_not_followed(code: Path, versions: VersionFolder, tmp_path: Path) -> None:
    """One in the folder leads to the copy; what lies elsewhere is never copied; loops are left out."""
    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets" / "secret").write_text("s")
    (code / ".env").write_text("TOKEN")
    links = {
        "alias.py": "train.py",
        "pkg/up": "..",
        "absolute": str(code / "pkg"),
        "data": str(tmp_path / "datasets"),
        "loop": "loop",
        "nowhere": "missing",
        "token": ".env",
    }
    for name, target in links.items():
        (code / name).symlink_to(target)
    version = take(versions, code)
    snapshot = versions.snapshot(1)
    assert set(versions.digests(1)) == {"train.py", "pkg/model.py", "pkg/run.sh"}
    assert (snapshot / "alias.py").resolve() == (snapshot / "train.py").resolve()
    assert (snapshot / "pkg" / "up").resolve() == snapshot.resolve()
    assert (snapshot / "absolute").resolve() == (snapshot / "pkg").resolve()
    assert version.shared == {"data": str((tmp_path / "datasets").resolve()), ".env": str(code / ".env")}
    assert (snapshot / "data").is_symlink()
    assert version.left_out["loop"] == "a link that leads to itself"
    assert version.left_out["nowhere"] == "a link that leads nowhere"
    assert (snapshot / "token").samefile(code / ".env")


@pytest.mark.parametrize(
    ("size", "files", "words"),
    [(2 << 20, 1, r"2\.0 MiB, more than 1 MiB \(supervise.code_max_mib\).*big0 \(2\.0 MiB\)"), (1, 60, "more than 50")],
)
def test_what_does_not_fit_is_refused_and_leaves_nothing(
    code: Path, versions: VersionFolder, size: int, files: int, words: str
) -> None:
    """By size the largest files are named, by number the key of the configuration."""
    for number in range(files):
        (code / f"big{number}").write_bytes(b"x" * size)
    with pytest.raises(SnapshotError, match=words):
        take(versions, code)
    assert versions.numbers() == []


def test_a_folder_that_is_none_is_refused(tmp_path: Path, versions: VersionFolder) -> None:
    """A file, nothing, and a folder without code."""
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    for name, words in (("file", "not a folder"), ("missing", "not a folder"), ("empty", "no file")):
        with pytest.raises(SnapshotError, match=words):
            take(versions, tmp_path / name)


def test_the_second_version_says_what_differs(code: Path, versions: VersionFolder) -> None:
    """Figures and a unified diff; binary files are only named."""
    (code / "blob").write_bytes(b"\0\1")
    take(versions, code)
    (code / "train.py").write_text("print(2)\nprint(3)\n")
    (code / "blob").write_bytes(b"\0\2")
    (code / "more.py").write_text("m = 1\n")
    (code / "pkg" / "model.py").unlink()
    version = take(versions, code, before=1)
    found = version.changes
    assert (found.added, found.removed, found.changed) == (("more.py",), ("pkg/model.py",), ("blob", "train.py"))
    assert found.text == "2 files changed, 1 file added, 1 file removed (+3 -2 lines)"
    diff = (versions.path / "2.diff").read_text()
    assert "-print(1)\n+print(2)\n+print(3)\n" in diff
    assert "blob differs; its lines are not compared" in diff
    assert "--- /dev/null\n+++ b/more.py" in diff


def test_a_long_diff_is_cut_and_says_so(code: Path, versions: VersionFolder) -> None:
    """The figures still count all lines."""
    take(versions, code)
    for number in range(9):
        (code / f"m{number}.py").write_text("x = 1234567890 * 1234567890\n" * 4900)
    version = VersionFolder(versions.path.parent).take(Origin(code, "a", before=1), Limits(1 << 30, 50, 30.0))
    assert version.changes.lines_added == 9 * 4900
    diff = (versions.path / "2.diff").read_text()
    assert diff.endswith(" are kept.\n")
    assert len(diff) < 1.1 * (1 << 20)


def test_what_the_program_wrote_is_carried_over(code: Path, versions: VersionFolder) -> None:
    """A relative output folder leads to the same place in each version; checkpoints to the folder's own."""
    (code / "ckpt").mkdir()
    take(versions, code, own_shared=("ckpt",))
    first = versions.snapshot(1)
    (first / "runs").mkdir()
    (first / "runs" / "log").write_text("1")
    (first / "pkg" / "cache").write_text("c")
    (first / "ckpt" / "step").write_text("5")
    (code / "train.py").write_text("print(2)\n")
    take(versions, code, own_shared=("ckpt",), before=1)
    (code / "train.py").write_text("print(3)\n")
    take(versions, code, own_shared=("ckpt",), before=2)
    third = versions.snapshot(3)
    assert (third / "runs").resolve() == (first / "runs").resolve()
    assert (third / "pkg" / "cache").read_text() == "c"
    assert (third / "ckpt").resolve() == (code / "ckpt").resolve()
    assert (code / "ckpt" / "step").read_text() == "5"


def test_an_edited_snapshot_is_noticed(code: Path, versions: VersionFolder) -> None:
    """A file that was changed or taken away, and a version that is not whole."""
    take(versions, code)
    (versions.snapshot(1) / "train.py").chmod(0o644)
    (versions.snapshot(1) / "train.py").write_text("evil")
    assert versions.damage(1) == "train.py of version 1 was changed after the snapshot"
    (versions.snapshot(1) / "train.py").unlink()
    assert "cannot be read" in versions.damage(1)
    assert "not whole" in versions.damage(2)


def test_a_submodule_that_was_not_checked_out_is_an_empty_folder(
    code: Path, versions: VersionFolder, tmp_path: Path
) -> None:
    """Git would list the repository around it."""
    other = tmp_path / "other"
    write(other, {"lib.py": ""})
    for folder in (other, code):
        git(folder, "init")
        git(folder, "add", ".")
        git(folder, "commit", "-m", "x")
    git(code, "-c", "protocol.file.allow=always", "submodule", "add", str(other), "third")
    git(code, "submodule", "deinit", "-f", "third")
    take(versions, code)
    assert set(versions.digests(1)) == {".gitmodules", "train.py", "pkg/model.py", "pkg/run.sh"}


def test_a_link_in_the_place_of_a_tracked_folder_is_a_link(code: Path, versions: VersionFolder, tmp_path: Path) -> None:
    """Git still lists what the folder had."""
    git(code, "init")
    git(code, "add", ".")
    (code / "pkg").rename(tmp_path / "elsewhere")
    (code / "pkg").symlink_to(tmp_path / "elsewhere")
    version = take(versions, code)
    assert set(versions.digests(1)) == {"train.py"}
    assert version.shared == {"pkg": str(tmp_path / "elsewhere")}


@pytest.mark.parametrize("variable", ["GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE"])
def test_the_folders_own_repository_is_asked(
    code: Path, versions: VersionFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """Whatever the shell that submitted the job had set, for instance in a hook of git."""
    write(code, {".gitignore": "big\n", "big": "x"})
    git(code, "init")
    git(code, "add", ".")
    monkeypatch.setenv(variable, str(tmp_path))
    version = take(versions, code)
    assert set(version.shared) == {"big"}
    assert set(versions.digests(1)) == {".gitignore", "train.py", "pkg/model.py", "pkg/run.sh"}


def test_a_colleagues_repository_is_read_by_git_too(code: Path, versions: VersionFolder) -> None:
    """Git refuses one by default, as its configuration could start programs; none is started here."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to make a folder of somebody else")
    write(code, {".gitignore": "big\n", "big": "x"})
    git(code, "init")
    git(code, "add", ".")
    for path in (code, code / ".git"):
        os.chown(path, 4242, -1)
    assert set(take(versions, code).shared) == {"big"}


def test_git_that_cannot_be_asked_is_told(
    code: Path, versions: VersionFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """All files are taken then: it may be why the folder does not fit."""
    git(code, "init")
    monkeypatch.setenv("PATH", str(tmp_path))
    version = take(versions, code)
    assert "git could not be asked" in not_part(version)
    (code / "big").write_bytes(b"x" * (2 << 20))
    with pytest.raises(SnapshotError, match="git could not be asked"):
        take(versions, code)


def test_links_to_names_that_no_list_can_hold_are_left_out(code: Path, versions: VersionFolder, tmp_path: Path) -> None:
    """Within the folder and outside of it."""
    name = os.fsdecode(b"latin-\xe9")
    for folder in (code, tmp_path):
        (folder / name).write_text("")
    (code / "inside").symlink_to(name)
    (code / "outside").symlink_to(tmp_path / name)
    version = take(versions, code)
    assert {"inside", "outside"} <= set(version.left_out)
    assert versions.damage(1) == ""


def test_a_link_that_leads_nowhere_here_may_do_so_on_the_nodes(code: Path, versions: VersionFolder) -> None:
    """A node's own disk, for instance; `srobust update` runs on a login node."""
    (code / "scratch").symlink_to("/no/such/disk")
    version = take(versions, code)
    assert version.shared == {"scratch": "/no/such/disk"}
    assert str((versions.snapshot(1) / "scratch").readlink()) == "/no/such/disk"


def test_folders_that_are_nested_too_deeply_are_refused(code: Path, versions: VersionFolder) -> None:
    """A program that has run wild must not end the supervisor."""
    here = Path.cwd()
    try:
        os.chdir(code)
        for _ in range(1200):
            Path("d").mkdir()
            os.chdir("d")
        os.chdir(here)
        with pytest.raises(SnapshotError, match="nested too deeply"):
            take(versions, code)
    finally:
        os.chdir(here)
        subprocess.run(["rm", "-r", str(code / "d")], check=True)  # too deep for Python


def test_what_cannot_be_read_stays_shared(code: Path, versions: VersionFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program could not read it in the folder either; a cache of root's must not cost the snapshot."""
    write(code, {"private/x.py": "", "pkg/token.txt": ""})
    closed = {code / "private", code / "pkg" / "token.txt"}
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path not in closed and real(path, mode))
    version = take(versions, code)
    assert set(version.shared) == {"private", "pkg/token.txt"}
    assert set(versions.digests(1)) == {"train.py", "pkg/model.py", "pkg/run.sh"}


class WritingAllTheWhile:
    """Stands in for the copying of a file: something appends to these before each look at them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *paths: Path) -> None:
        self.paths = {str(path) for path in paths}
        self.real = os.fstat
        self.looks = 0
        monkeypatch.setattr(os, "fstat", self)

    def __call__(self, fd: int) -> os.stat_result:
        """As `os.fstat`."""
        if (name := str(Path(f"/proc/self/fd/{fd}").readlink())) in self.paths:
            self.looks += 1
            with Path(name).open("a") as f:
                f.write("x")
        return self.real(fd)


def test_a_log_that_is_written_to_stays_shared(
    code: Path, versions: VersionFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must not keep a version from being taken; source that changes all the while does."""
    write(code, {"run.log": "1"})
    WritingAllTheWhile(monkeypatch, code / "run.log")
    version = take(versions, code)
    assert version.shared == {"run.log": str(code / "run.log")}
    assert (version.files, set(versions.digests(1))) == (3, {"train.py", "pkg/model.py", "pkg/run.sh"})
    assert (versions.snapshot(1) / "run.log").samefile(code / "run.log")
    WritingAllTheWhile(monkeypatch, code / "train.py")
    with pytest.raises(SnapshotError, match=r"train\.py changes while it is copied"):
        take(versions, code)


def test_a_file_that_goes_away_has_the_folder_read_again(
    code: Path, versions: VersionFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An editor's own file, or one that it puts in the place of another."""
    write(code, {"4913": ""})
    real = snapshot.copy

    def copy(*arguments: Any) -> dict[str, str]:
        (code / "4913").unlink(missing_ok=True)
        return real(*arguments)

    monkeypatch.setattr(snapshot, "copy", copy)
    assert take(versions, code).number == 1
    assert set(versions.digests(1)) == {"train.py", "pkg/model.py", "pkg/run.sh"}


def test_nothing_is_left_of_one_that_is_interrupted(
    code: Path, versions: VersionFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C, in the midst of a large copy."""

    def copy(*_: Any) -> dict[str, str]:
        (versions.snapshot(1) / "half").write_text("")
        raise KeyboardInterrupt

    monkeypatch.setattr(snapshot, "copy", copy)
    with pytest.raises(KeyboardInterrupt):
        take(versions, code)
    assert [*versions.path.iterdir()] == []


def test_a_folder_whose_name_no_list_can_hold_is_refused(tmp_path: Path, versions: VersionFolder) -> None:
    """The supervisor could not report it."""
    folder = tmp_path / os.fsdecode(b"latin-\xe9")
    write(folder, {"train.py": ""})
    with pytest.raises(SnapshotError, match="not one line of text"):
        take(versions, folder)


def test_a_folder_of_very_many_data_files_is_shared_as_a_whole(
    code: Path, versions: VersionFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although git keeps a file in it; a link for each would take minutes. One with source in it stays as it is."""
    monkeypatch.setattr(selection, "_NEW_ENTRIES", 5)
    write(code, {".gitignore": "*.jpg\n", "data/.gitkeep": ""})
    git(code, "init")
    git(code, "add", ".")
    for number in range(8):
        write(code, {f"data/{number}.jpg": "", f"pkg/{number}.jpg": ""})
    version = take(versions, code)
    assert set(version.shared) == {"data", *(f"pkg/{number}.jpg" for number in range(8))}
    assert set(versions.digests(1)) == {".gitignore", "train.py", "pkg/model.py", "pkg/run.sh"}
