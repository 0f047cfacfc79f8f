"""What was given up is passed over, and the batches of that time are left out, by every later attempt."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust import checkpoint
from slurm_robust.checkpoint.base import rollback_log
from slurm_robust.checkpoint.base.rollback_log import SKIP_VARIABLE, Rollback, Skipped, given_up, skipped_batches

Make = Callable[..., Path]


def rollback(at_s: float = 100.0, to_step: int = 10, first: int = 14, last: int = 17) -> Rollback:
    """One of them."""
    return Rollback(at_s=at_s, to_step=to_step, why="loss nan at step 15", first_batch=first, last_batch=last)


@pytest.mark.parametrize(
    ("step", "written_at_s", "gone"), [(10, 50.0, False), (11, 50.0, True), (11, 100.0, False), (99, 99.9, True)]
)
def test_what_is_given_up(step: int, written_at_s: float, *, gone: bool) -> None:
    """Later steps that were written before it; neither what it went back to, nor what was written since."""
    why = given_up([rollback()], step, written_at_s)
    assert bool(why) == gone
    if gone:
        assert "loss nan at step 15" in why
        assert "step 10" in why


def test_the_file(tmp_path: Path) -> None:
    """Each one is added to those before it; what cannot be read is an error, never an empty list."""
    assert rollback_log.read(tmp_path / "not there yet") == ()
    for n in (1, 2):
        rollback_log.add(tmp_path, rollback(at_s=n))
    assert [one.at_s for one in rollback_log.read(tmp_path)] == [1, 2]
    for text in (b'{"version": 9}', b"{", b"\xff"):
        (tmp_path / rollback_log.ROLLBACKS_NAME).write_bytes(text)
        with pytest.raises(checkpoint.CheckpointError, match=rollback_log.ROLLBACKS_NAME):
            rollback_log.read(tmp_path)
        checkpoint.save(tmp_path, 1, {"x": 1})
        with pytest.raises(checkpoint.CheckpointError, match=rollback_log.ROLLBACKS_NAME):
            checkpoint.latest(tmp_path)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 6)), max_size=6))
def test_each_batch_that_is_not_left_out_is_read_once(drawn: list[tuple[int, int]]) -> None:
    """Step after step reads the next batch that is not left out."""
    skipped = Skipped((first, first + more) for first, more in drawn)
    out = {n for first, more in drawn for n in range(first, first + more + 1)}
    assert [skipped.batch(step) for step in range(80)] == [n for n in range(200) if n not in out][:80]
    assert {n for n in range(200) if n in skipped} == out
    assert bool(skipped) == bool(drawn)


def test_the_environment_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the wrapper exported counts, an empty text too; without it the folder tells; nonsense is an error."""
    rollback_log.add(tmp_path, rollback())
    monkeypatch.delenv(SKIP_VARIABLE, raising=False)
    assert skipped_batches(tmp_path).ranges == ((14, 17),)
    assert not skipped_batches()
    for text, ranges in (("", ()), ("3-5,9-9", ((3, 5), (9, 9))), (str(Skipped([(1, 2), (3, 4)])), ((1, 4),))):
        monkeypatch.setenv(SKIP_VARIABLE, text)
        assert skipped_batches(tmp_path).ranges == ranges
    monkeypatch.setenv(SKIP_VARIABLE, "3-x")
    with pytest.raises(checkpoint.CheckpointError, match="1200-1204"):
        skipped_batches()


@pytest.mark.parametrize("sealed", [True, False])
def test_the_way_that_was_given_up_is_passed_over(directory: Path, make: Make, *, sealed: bool) -> None:
    """Also without a seal, and where the file server's clock is ahead of the one that sealed."""
    old, spoiled = make(10, sealed=sealed), make(20, sealed=False)
    if sealed:
        ahead = time.time() + 60
        for one in (*spoiled.iterdir(), spoiled):
            os.utime(one, (ahead, ahead))
        checkpoint.seal(spoiled)
    rollback_log.add(directory, rollback(at_s=time.time()))
    found = checkpoint.latest(directory, unsealed=not sealed)
    assert found.path == old
    assert [(path, why.startswith("abandoned")) for path, why in found.passed_over] == [(spoiled, True)]
