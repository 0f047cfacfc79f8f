"""What the tests of warm restarts share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from warm_programs import WarmPrograms  # type: ignore[import-not-found]


@pytest.fixture
def patient(programs: WarmPrograms) -> None:
    """A busy machine may answer later than a supervisor would wait."""
    programs.within_s = 20.0


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[WarmPrograms]:
    """Programs in a folder of their own; what still runs is ended."""
    made = WarmPrograms(tmp_path)
    yield made
    made.end()
