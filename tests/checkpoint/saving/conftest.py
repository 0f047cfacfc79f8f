"""Nodes of a job, for ranks to sit on."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from saving_nodes import Nodes


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Nodes]:
    """Nodes of a job of this test's own; ranks say which of them they are on by SLURMD_NODENAME."""
    job_id = f"{os.getpid()}{abs(hash(request.node.name)) % 10**6}"
    monkeypatch.setenv("SLURM_JOB_ID", job_id)
    monkeypatch.setenv("SLURM_CLUSTER_NAME", "test")
    monkeypatch.setenv("SROBUST_ATTEMPT", "1")
    made = Nodes(job_id)
    yield made
    made.end()
