"""How much memory a node's job may still take: the node's, and below every limit of its cgroups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_robust.supervise.agent import procfs, warm_processes


def cgroup(folder: Path, names: tuple[str, str], limit: str, used: int, stat: str) -> None:
    """The files of one memory cgroup."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{stat} 100\n")


V1, V2 = ("memory.limit_in_bytes", "memory.usage_in_bytes"), ("memory.max", "memory.current")


def test_the_tightest_limit_above_a_process_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the step, of the job, or of the node; page cache that would be given up is free."""
    monkeypatch.setattr(procfs, "cgroup", lambda _: "0::/slurm/job_5/step_1\n")
    job = tmp_path / "slurm" / "job_5"
    cgroup(job / "step_1", V2, "max", 10, "inactive_file")
    cgroup(job, V2, "5000", 4000, "inactive_file")
    assert warm_processes.available_bytes(1, str(tmp_path)) == 1100
    cgroup(job / "step_1", V2, "1000", 950, "inactive_file")
    assert warm_processes.available_bytes(1, str(tmp_path)) == 150


def test_version_1_of_cgroups_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its limit that is none is a huge number."""
    monkeypatch.setattr(procfs, "cgroup", lambda _: "9:cpu:/x\n4:memory:/slurm/job_5\n0::/elsewhere\n")
    cgroup(tmp_path / "memory" / "slurm", V1, str(2**63 - 4096), 10, "total_inactive_file")
    cgroup(tmp_path / "memory" / "slurm" / "job_5", V1, "7000", 2000, "total_inactive_file")
    assert warm_processes.available_bytes(1, str(tmp_path)) == 5100


def test_a_node_without_limits_has_its_free_memory() -> None:
    """And a process's own memory is part of it."""
    available = warm_processes.available_bytes(os.getpid(), "/nonexistent")
    assert available > 0
    assert 0 < warm_processes.own_bytes(os.getpid()) < 64 << 30
    assert warm_processes.own_bytes(0) == 0
