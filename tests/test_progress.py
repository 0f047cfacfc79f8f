"""What the training loop says must reach another process whole, and must never be the reason that training fails."""

from __future__ import annotations

import ast
import contextlib
import errno
import importlib.util
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust import progress as original

SOURCE = Path(original.__file__)


@pytest.fixture
def progress(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A fresh copy of the module, as a process that just started has it."""
    monkeypatch.delenv("SROBUST_PROGRESS", raising=False)
    monkeypatch.setattr(os, "register_at_fork", lambda **_: None)
    spec = importlib.util.spec_from_file_location("fresh_progress", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    if module._page is not None:
        os.close(module._page.fd)


def own_record(progress: ModuleType) -> original.ProgressRecord:
    """What a reader sees of this process."""
    record: original.ProgressRecord | None = progress.read(progress._page.fd)
    assert record is not None
    return record


def run(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own; a warning there is an error."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, **env},
    )


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


def test_before_the_first_step(progress: ModuleType) -> None:
    """A process that only made its page is in start-up, at step -1, with nothing known."""
    progress.layout()
    record = own_record(progress)
    assert (record.step, record.calls, record.phase, record.loss) == (-1, 0, "startup", None)
    assert record.phase_timeout_s is None


def test_the_first_step_is_kept(progress: ModuleType) -> None:
    """Who looks in at step 9 still learns that 7 was the first, and when."""
    progress.mark("imports_done")
    assert own_record(progress).first_step == -1
    before_s = time.time()
    progress.step(7)
    after_s = time.time()
    progress.step(8)
    progress.step(9)
    record = own_record(progress)
    assert (record.step, record.first_step) == (9, 7)
    assert before_s <= record.first_step_at_s <= after_s


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_passed_on(progress: ModuleType, value: float) -> None:
    """NaN and infinity arrive as they are, are told apart from `not given`, and are counted."""
    progress.step(1, loss=value, grad_norm=value)
    progress.step(2)
    record = own_record(progress)
    assert (str(record.loss), str(record.grad_norm)) == (str(value), str(value))
    assert record.nonfinite_losses == 1


def test_the_last_loss_stays(progress: ModuleType) -> None:
    """A loop that gives its loss now and then leaves the last one to be seen."""
    progress.step(1, loss=2)
    progress.step(2)
    assert own_record(progress).loss == 2.0


TOUCHED: list[str] = []


class Untouchable:
    """Stands for a CUDA tensor: whatever is asked of it would wait for the device, so all of it is noted."""

    def __getattribute__(self, name: str) -> object:
        TOUCHED.append(name)
        return object.__getattribute__(self, name)

    def _note(self, *_: object) -> float:
        TOUCHED.append("operator")
        return 1.0

    __float__ = __int__ = __index__ = __bool__ = __len__ = __sub__ = __rsub__ = __repr__ = _note  # type: ignore[assignment]
    __eq__ = __ne__ = __lt__ = _note  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]


def test_what_is_no_number_is_not_touched(progress: ModuleType) -> None:
    """A tensor as step, loss or norm is ignored without one call on it; the call still counts as a sign of life."""
    progress.step(3)
    progress.step(Untouchable(), loss=Untouchable(), grad_norm=Untouchable())
    progress.set_phase("evaluate", timeout_s=Untouchable())
    record = own_record(progress)
    assert (record.calls, record.step, record.loss, record.grad_norm) == (2, 3, None, None)
    assert TOUCHED == []


@pytest.mark.parametrize("value", [10**40, -(10**40), "x", None, b"", 1.5, True])
def test_no_argument_is_an_error(progress: ModuleType, value: object) -> None:
    """Whatever is given, nothing is raised, and the page can be read afterwards."""
    progress.step(value, loss=value, grad_norm=value)
    progress.set_phase("train", timeout_s=value)
    progress.layout(tp=value)
    progress.mark(value)
    progress.step(5)
    assert own_record(progress).step == 5


def test_phases_nest_and_come_back(progress: ModuleType) -> None:
    """A block's phase holds inside it, also after an exception and around step(); then the one before holds again."""
    progress.step(1)
    with progress.phase("evaluate", timeout_s=9):
        assert (own_record(progress).phase, own_record(progress).phase_timeout_s) == ("evaluate", 9.0)
        with contextlib.suppress(ZeroDivisionError), progress.phase("checkpoint"):
            assert own_record(progress).phase == "checkpoint"
            _ = 1 / 0
        progress.step(2)
        assert (own_record(progress).phase, own_record(progress).phase_timeout_s) == ("evaluate", 9.0)
    assert (own_record(progress).phase, own_record(progress).phase_timeout_s) == ("train", None)


def test_a_step_ends_a_phase_that_was_only_set(progress: ModuleType) -> None:
    """Who forgets to set the phase back is training again with the next step."""
    progress.set_phase("evaluate", timeout_s=100)
    progress.step(1)
    assert (own_record(progress).phase, own_record(progress).phase_timeout_s) == ("train", None)


def test_an_unknown_phase_is_said_once(progress: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    """A slip of the pen changes nothing and is one line on stderr."""
    for _ in range(3):
        with progress.phase("eval"):
            assert own_record(progress).phase == "startup"
    assert capsys.readouterr().err.count("'eval' is ignored") == 1


def test_marks_keep_the_first_time(progress: ModuleType) -> None:
    """A mark set twice tells its first time; more than fit are ignored."""
    progress.mark("imports_done")
    first = own_record(progress).marks["imports_done"]
    progress.mark("imports_done")
    for n in range(50):
        progress.mark(f"m{n}")
    marks = own_record(progress).marks
    assert marks["imports_done"] == first
    assert len(marks) == 32


def test_a_record_is_never_torn() -> None:
    """While a process writes as fast as it can, each record read belongs to one step."""
    code = """
from slurm_robust import progress
progress.step(0, loss=0, grad_norm=0); print("ready", flush=True)
n = 0
while True:
    n += 1
    progress.step(n, loss=n, grad_norm=n)
    if not n % 64: sum(range(2000))
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        path = original.find(process.pid)
        assert path is not None
        fd = os.open(path, os.O_RDONLY)
        records = [original.read(fd) for _ in range(3000)]
        os.close(fd)
        process.kill()
    good = [record for record in records if record is not None]
    assert len(good) > 100
    assert all(record.step == record.loss == record.grad_norm == record.calls - 1 for record in good)
    assert good[-1].step > good[0].step


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
    before = list(Path("/proc/self/fd").iterdir())
    progress.step(1)
    made_of_first_call = len(tries)
    progress.step(2)
    with progress.phase("evaluate"):
        progress.mark("x")
    assert len(tries) == made_of_first_call >= 1
    assert len(list(Path("/proc/self/fd").iterdir())) == len(before)


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


@given(st.binary(min_size=4096 - 8, max_size=4096 - 8), st.booleans())
def test_any_page_can_be_read(noise: bytes, magic: bool) -> None:
    """A page is untrusted: whatever it holds, reading it gives a record or None and raises nothing."""
    page = (original.MAGIC if magic else noise[:8]) + noise
    record = original.read(page)
    if record is not None:
        assert record.phase in original.PHASES


@pytest.mark.parametrize("page", [b"", b"SROBPRG1", b"x" * 4096])
def test_what_is_no_page(page: bytes) -> None:
    """Bytes that are no page are None."""
    assert original.read(page) is None


def test_a_foreign_descriptor_is_no_page(tmp_path: Path) -> None:
    """A descriptor of something else, or a closed one, is None."""
    (tmp_path / "x").write_bytes(b"x" * 8192)
    fd = os.open(tmp_path / "x", os.O_RDONLY)
    assert original.read(fd) is None
    os.close(fd)
    assert original.read(fd) is None


def test_find_where_nothing_is() -> None:
    """A process that is gone has no path."""
    assert original.find(2**22 + 5) is None


def test_it_stays_one_plain_file_for_python_3_8() -> None:
    """The file parses as Python 3.8 and imports the standard library only."""
    tree = ast.parse(SOURCE.read_text(), feature_version=(3, 8))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "." for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert names <= set(sys.stdlib_module_names)


def test_timings_are_kept_with_their_steps(progress: ModuleType) -> None:
    """The last 48, oldest first; the total runs from one told step to the next, and is unknown after a gap."""
    for n in range(60):
        progress.step(n)
        progress.timing(compute_s=n / 10)
    progress.step(99)
    progress.timing(communication_s=0.5)
    record = own_record(progress)
    assert record.timed == 61
    assert [t.step for t in record.timings] == [*range(13, 60), 99]
    assert record.timings[0].compute_s == 1.3
    assert 0 <= record.timings[0].total_s < 10
    last = record.timings[-1]
    assert math.isnan(last.total_s)
    assert math.isnan(last.compute_s)
    assert last.communication_s == 0.5


def test_a_timing_that_is_no_number_is_unknown(progress: ModuleType) -> None:
    """Nothing is raised, nothing of the object runs, and the page stays readable."""
    progress.step(1)
    progress.timing(compute_s="fast", communication_s=object())
    record = own_record(progress)
    assert (record.step, record.timed) == (1, 1)
    assert math.isnan(record.timings[0].compute_s)


def test_a_page_of_the_first_version_has_no_timings(progress: ModuleType) -> None:
    """A rank with an older copy of the file: what lies there is not taken for timings."""
    progress.step(1)
    progress.timing(compute_s=1.0)
    page = bytearray(progress._page.memory[:])
    page[8:12] = (1).to_bytes(4, sys.byteorder)
    record = original.read(bytes(page))
    assert record is not None
    assert (record.step, record.timed, record.timings) == (1, 0, ())
