"""Reading a page of progress, whatever is in it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust import progress as original


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


def test_a_page_of_the_first_version_has_no_timings(progress: ModuleType) -> None:
    """A rank with an older copy of the file: what lies there is not taken for timings."""
    progress.step(1)
    progress.timing(compute_s=1.0)
    page = bytearray(progress._page.memory[:])
    page[8:12] = (1).to_bytes(4, sys.byteorder)
    record = original.read(bytes(page))
    assert record is not None
    assert (record.step, record.timed, record.timings) == (1, 0, ())
