from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.supervise.agent.exits import Exits, parse


def test_lines_are_told_once_and_the_last_ones_after_the_file_went(tmp_path: Path) -> None:
    """As slurmstepd writes: a line a task, and away with the file at the step's end."""
    path, exits = tmp_path / "1.0-7", Exits("n1")
    path.write_text("")
    exits.follow(str(path), "0")
    assert exits.read_new() == []
    with path.open("a") as file:
        file.write(f"3 7 0 {time.time():.3f}\n0 0 9 {time.time() - 5:.3f}\n1 0 ")
        file.flush()
        first, second = exits.read_new()
        assert first[:5] == ("n1", "0", 3, 7, 0)
        assert first.age_s < 60
        assert (second.task, second.signal, round(second.age_s)) == (0, 9, 5)
        assert exits.read_new() == []
        file.write("0 12.5\n")
    path.unlink()
    assert [(e.task, e.code, e.signal) for e in exits.read_new()] == [(1, 0, 0)]
    assert exits.read_new() == []
    exits.forget()


def test_a_name_that_is_no_file_holds_nobody_up(tmp_path: Path) -> None:
    """It comes out of a rank's environment: a pipe, a folder, a link, nothing, a zero byte."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "real").write_text("1 1 0 1.0\n")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    exits = Exits("n1")
    for name in ("pipe", ".", "link", "none", "a\0b"):
        exits.follow(str(tmp_path / name), "0")
    assert exits.read_new() == []
    exits.forget()


@pytest.mark.parametrize(
    "line", ["", "1", "1 2 3", "1 2 0 x", "-1 0 0 1", "1 256 0 1", "1 0 65 1", "1 0 0 nan", "1 0 0 1 1"]
)
def test_what_is_no_line_is_passed_over(line: str) -> None:
    """Missing words, and numbers that no exit has."""
    assert parse(line.encode(), "n1", "0", 10.0) is None


@given(st.binary(max_size=60))
def test_noise_is_never_an_error(line: bytes) -> None:
    """Nothing, or an exit whose numbers are in their bounds."""
    ended = parse(line, "n1", "0", 10.0)
    assert ended is None or (
        ended.task >= 0 and 0 <= ended.code <= 255 and 0 <= ended.signal <= 64 and ended.age_s >= 0
    )
