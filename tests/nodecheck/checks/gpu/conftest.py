"""The fake NVML, compiled once a run."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_gpus import FakeGpus, compile_fake


@pytest.fixture(scope="session")
def fake_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled library."""
    return compile_fake(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def gpus(fake_library: Path, tmp_path: Path) -> FakeGpus:
    """Eight healthy H100 SXM until the test says otherwise."""
    return FakeGpus(fake_library, tmp_path)
