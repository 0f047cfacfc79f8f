"""Services that a test started end with it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from watch_helpers import RunningService


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Callable[..., RunningService]]:
    """Makes services on the test's folder."""
    made: list[RunningService] = []

    def make(*more: str, **options: Any) -> RunningService:
        made.append(RunningService(tmp_path, *more, **options))
        return made[-1]

    yield make
    for service in made:
        service.end(signal.SIGKILL)
