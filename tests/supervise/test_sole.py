"""Two supervised runs in one job."""

from __future__ import annotations

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
    first.release()
    other.release()
    assert list(tmp_path.iterdir()) == []
    third = Sole("c", "5")
    assert third.claim()
    assert not third.shared
    third.release()


def test_a_machine_without_a_place_for_the_lock_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The usual case is one run: it must not suffer."""
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "none"))
    sole = Sole("c", "5")
    assert sole.claim()
    assert not sole.shared
