"""Progress across processes: forks, switches, machines without what it needs."""

from __future__ import annotations

import ast
import errno
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest
from progress_source import SOURCE, own_record, run

from slurm_robust import progress as original


def test_a_process_is_read_from_outside(tmp_path: Path) -> None:
    """The page is found through /proc and tells pid, step, loss, layout and marks; nothing but the file is needed."""
    shutil.copy(SOURCE, tmp_path / "progress.py")
    code = """
import sys; sys.path.insert(0, sys.argv[1])
import progress
progress.mark("imports_done"); progress.layout(tp=2, pp=4, bad="x", none=0)
progress.step(7, loss=1.5); progress.set_phase("evaluate", timeout_s=60)
print("ready", flush=True); sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-I", "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        path = original.find(process.pid)
        assert path is not None
        fd = os.open(path, os.O_RDONLY)
        record = original.read(fd)
        os.close(fd)
        process.communicate("")
    assert record is not None
    assert (record.pid, record.step, record.loss, record.grad_norm) == (process.pid, 7, 1.5, None)
    assert (record.phase, record.phase_timeout_s) == ("evaluate", 60.0)
    assert record.layout == {"tp": 2, "pp": 4}
    assert list(record.marks) == ["imports_done"]
    assert abs(record.step_at_s - time.time()) < 60
    assert abs(record.step_monotonic_s - time.monotonic()) < 60


def test_a_forked_child_is_silent() -> None:
    """A data loader forked from a rank neither shows a page of its own nor writes into the rank's."""
    code = """
import os
from slurm_robust import progress
progress.step(1)
if (pid := os.fork()) == 0:
    progress.step(99); progress.set_phase("idle")
    os._exit(0 if progress.find(os.getpid()) is None else 1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
fd = os.open(progress.find(os.getpid()), os.O_RDONLY)
assert progress.read(fd).step == 1
"""
    done = run(code)
    assert done.returncode == 0, done.stderr


def test_a_child_of_a_silent_parent_may_report() -> None:
    """A launcher that only imported the module and forks its ranks does not switch them off."""
    code = """
import os
from slurm_robust import progress
if (pid := os.fork()) == 0:
    progress.step(5)
    os._exit(0 if progress.read(os.open(progress.find(os.getpid()), os.O_RDONLY)).pid == os.getpid() else 1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""
    done = run(code)
    assert done.returncode == 0, done.stderr


def test_a_child_closes_only_what_is_ours() -> None:
    """Where somebody closed our descriptor and its number serves another file, a fork leaves that one open."""
    code = """
import os
from slurm_robust import progress
progress.step(1)
fd = progress._page.fd
os.close(fd)
other = os.open("/dev/null", os.O_RDONLY)
assert other == fd
if (pid := os.fork()) == 0:
    os.fstat(other)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
progress.step(2)
"""
    done = run(code)
    assert done.returncode == 0, done.stderr


def test_switched_off() -> None:
    """SROBUST_PROGRESS=0: no page, and every call still works."""
    code = """
import os
from slurm_robust import progress
progress.step(1, loss=1.0); progress.mark("x"); progress.layout(tp=1)
with progress.phase("evaluate"): pass
assert progress.find(os.getpid()) is None
"""
    done = run(code, SROBUST_PROGRESS="0")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["memfd_create", "posix_fallocate"])
def test_no_memory_for_the_page(progress: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Where the page cannot be made, nothing is raised, no descriptor is left open, and it is not tried again."""
    tries = []

    def refuse(*_: object) -> int:
        tries.append(1)
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, name, refuse)

    def pages() -> list[str]:
        """Not all descriptors: others of this process come and go meanwhile, and earlier tests keep their pages."""
        links = {fd.name: os.path.realpath(fd) for fd in Path("/proc/self/fd").iterdir()}
        return sorted(fd for fd, link in links.items() if progress.MEMFD_NAME in link)

    before = pages()
    progress.step(1)
    made_of_first_call = len(tries)
    progress.step(2)
    with progress.phase("evaluate"):
        progress.mark("x")
    assert len(tries) == made_of_first_call >= 1
    assert pages() == before


def test_a_python_without_memfd_create(progress: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python built against an old C library asks the one that runs."""
    monkeypatch.delattr(os, "memfd_create")
    progress.step(4)
    assert own_record(progress).step == 4


@pytest.mark.parametrize(("scope", "calls"), [("1\n", 1), ("0\n", 0), ("2\n", 0), (None, 0)])
def test_yama(
    progress: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, scope: str | None, calls: int
) -> None:
    """Only where Yama lets ancestors alone attach is the tracer allowed, by any process of the user."""
    import ctypes  # noqa: PLC0415 (only to be replaced)

    seen: list[tuple[int, ...]] = []

    class Prctl:
        argtypes: object = None

        def __call__(self, *args: int) -> int:
            seen.append(args)
            return 0

    class Library:
        prctl = Prctl()

    if scope is not None:
        (tmp_path / "scope").write_text(scope)
    monkeypatch.setattr(progress, "_YAMA_SCOPE", str(tmp_path / "scope"))
    monkeypatch.setattr(progress, "_prctl", None)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: Library())
    progress._allow_tracer()
    assert len(seen) == calls
    assert all(args[:2] == (0x59616D61, 2**64 - 1) for args in seen)


def test_it_stays_one_plain_file_for_python_3_8() -> None:
    """The file parses as Python 3.8 and imports the standard library only."""
    tree = ast.parse(SOURCE.read_text(), feature_version=(3, 8))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "." for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert names <= set(sys.stdlib_module_names)
