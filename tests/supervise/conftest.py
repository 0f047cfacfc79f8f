"""What many tests of the supervisor need."""

from __future__ import annotations

from pathlib import Path

import pytest
from supervised import FakeClock
from torchrun_attempt import attempt_of, with_ranks

from slurm_robust.supervise.watch.attempt_state import AttemptState


@pytest.fixture
def clock() -> FakeClock:
    """A clock that the test moves."""
    return FakeClock(100.0)


@pytest.fixture
def attempt(tmp_path: Path, clock: FakeClock) -> AttemptState:
    """Job 5, step 0, two tasks of two ranks each (torchrun) on n1 and n2."""
    return with_ranks(attempt_of(tmp_path / "slurm-5.out", clock))
