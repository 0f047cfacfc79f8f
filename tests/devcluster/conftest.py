"""Fixtures of the devcluster's tests."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A folder whose path is short enough for sockets, which pytest's own often is not."""
    with tempfile.TemporaryDirectory(prefix="dc-test-") as name:
        Path(name).chmod(0o755)
        yield Path(name)
