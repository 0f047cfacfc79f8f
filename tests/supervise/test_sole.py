"""Two supervised runs in one job."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_robust.supervise.sole import Sole


def test_the_second_is_told_and_the_first_learns_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither acts from then on; another job, or the next run of the same job, is not concerned."""
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    first, second, other = Sole("c", "5"), Sole("c", "5"), Sole("c", "6")
    assert first.claim()
    assert other.claim()
    assert not first.shared
    assert not second.claim()
    assert first.shared
    assert not other.shared
    second.release()
    first.release()
    other.release()
    assert list(tmp_path.iterdir()) == []
    third = Sole("c", "5")
    assert third.claim()
    assert not third.shared
    third.release()


def test_who_came_second_and_ended_disarms_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short step in the background: while it lives neither acts, afterwards the long one does."""
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    first = Sole("c", "5")
    assert first.claim()
    held = "from slurm_robust.supervise.sole import Sole; s = Sole('c', '5'); print(s.claim(), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", held],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as second:
        assert second.stdout is not None
        assert second.stdout.readline() == "False\n"
        assert first.shared
        second.kill()  # not even a chance to tidy up
        second.wait()
    assert not first.shared
    first.release()
    assert list(tmp_path.iterdir()) == []


def test_a_third_knows_of_the_second_that_outlived_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that the second holds stays where the first tidies up."""
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    first, second, third = Sole("c", "5"), Sole("c", "5"), Sole("c", "5")
    assert first.claim()
    assert not second.claim()
    first.release()
    assert third.claim()
    assert third.shared
    second.release()
    assert not third.shared
    third.release()


def test_a_machine_without_a_place_for_the_lock_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The usual case is one run: it must not suffer."""
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "none"))
    sole = Sole("c", "5")
    assert sole.claim()
    assert not sole.shared
