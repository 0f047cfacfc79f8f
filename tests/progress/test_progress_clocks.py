"""The times in a page of progress, whatever the program does with its clocks."""

from __future__ import annotations

import struct
import time
from types import ModuleType

import pytest
from progress_source import own_record


def test_a_program_that_replaces_its_clocks_is_read_all_the_same(
    progress: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frozen clocks of a test library, or of a simulation, are not those of its steps, phases and marks."""
    began_s, began_at_s = time.monotonic(), time.time()
    monkeypatch.setattr(time, "time", lambda: 1e9)
    monkeypatch.setattr(time, "monotonic", lambda: 5.0)
    progress.mark("imports_done")
    progress.step(1)
    progress.set_phase("evaluate")
    monkeypatch.undo()
    ended_s, ended_at_s = time.monotonic(), time.time()
    record = own_record(progress)
    times = (record.made_monotonic_s, record.mark_monotonic_s["imports_done"], record.first_step_monotonic_s)
    times += (record.step_monotonic_s, record.phase_monotonic_s)
    assert sorted(times) == list(times)
    assert began_s <= times[0] <= times[-1] <= ended_s
    assert began_at_s <= record.step_at_s <= record.phase_at_s <= ended_at_s


def test_a_page_of_an_older_file_tells_when_the_first_step_was(progress: ModuleType) -> None:
    """It has that time only as a time of day: how long after the page was made, by the program's own clock."""
    progress.step(1)
    progress.step(2)
    page = bytearray(progress._page.memory[:])
    struct.pack_into("@Q", page, 176, 0)
    made_s, made_at_s = struct.unpack_from("@dd", page, 144)
    struct.pack_into("@d", page, 40 + 8, made_s + 60.0)
    struct.pack_into("@d", page, 168, made_at_s + 20.0)
    record = progress.read(bytes(page))
    assert record.first_step_monotonic_s == pytest.approx(made_s + 20.0, abs=0.01)
    struct.pack_into("@d", page, 168, made_at_s + 3600.0)
    assert progress.read(bytes(page)).first_step_monotonic_s == made_s + 60.0, "not after the last step"


def test_an_older_reader_finds_the_first_step_where_it_was(progress: ModuleType) -> None:
    """Fields are only ever added: its number and time of day stand at 160."""
    progress.step(7)
    step, at_s = struct.unpack_from("@qd", progress._page.memory, 160)
    assert step == 7
    assert at_s == own_record(progress).first_step_at_s
