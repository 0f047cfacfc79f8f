"""Every rank starts where the wrapper said; without it, from the newest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.resume import PATH_VARIABLE, STEP_VARIABLE, resume_from_env
from slurm_robust.checkpoint.store.find import Found

Make = Callable[..., Path]


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """No wrapper around the tests."""
    monkeypatch.delenv(PATH_VARIABLE, raising=False)
    monkeypatch.delenv(STEP_VARIABLE, raising=False)


def test_the_wrapper_decides(make: Make, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it exported holds, also where a newer one appeared since."""
    old = make(1)
    make(2)
    monkeypatch.setenv(PATH_VARIABLE, str(old))
    monkeypatch.setenv(STEP_VARIABLE, "1")
    assert resume_from_env(directory) == Found(path=old, step=1)


def test_the_wrapper_found_none(make: Make, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have searched another folder than the program saves in: what the program has is not thrown away."""
    monkeypatch.setenv(PATH_VARIABLE, "")
    assert resume_from_env(directory).path is None
    made = make(1)
    assert resume_from_env(directory).path == made


def test_without_the_wrapper(make: Make, directory: Path) -> None:
    """The newest is looked up."""
    newest = make(2)
    make(1)
    assert resume_from_env(directory).path == newest


def test_a_step_that_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said which variable is wrong."""
    monkeypatch.setenv(PATH_VARIABLE, "/x")
    monkeypatch.setenv(STEP_VARIABLE, "ten")
    with pytest.raises(CheckpointError, match=STEP_VARIABLE):
        resume_from_env("/x")
