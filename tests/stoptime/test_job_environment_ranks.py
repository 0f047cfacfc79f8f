"""The variables of a job's ranks, found among the processes of a node."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_robust.stoptime import job_environment
from slurm_robust.stoptime.conclusion import environment_note

OWN = {"SLURM_JOB_ID": "12", "SLURMD_NODENAME": "n1", "SLURM_STEP_ID": "4"}
RANK = {"SLURM_JOB_ID": "12", "SLURMD_NODENAME": "n1", "SLURM_STEP_ID": "0", "SLURM_PROCID": "3"}


def process(proc: Path, pid: int, environ: dict[str, str]) -> None:
    """A process with this environment."""
    (proc / str(pid)).mkdir(parents=True)
    text = "\0".join(f"{name}={value}" for name, value in environ.items())
    (proc / str(pid) / "environ").write_text(text + "\0")


def test_the_first_rank_of_the_job_on_this_node_counts(tmp_path: Path) -> None:
    """Only variables of the network libraries; a rank of torchrun before the launcher that started it."""
    process(tmp_path, 9, {**RANK, "SLURM_PROCID": "2", "NCCL_SOCKET_IFNAME": "eth0"})
    process(tmp_path, 10, {**RANK, "SLURM_PROCID": "2", "RANK": "16", "NCCL_SOCKET_IFNAME": "ib0", "SECRET": "x"})
    assert job_environment.of_ranks(tmp_path, OWN) == {"NCCL_SOCKET_IFNAME": "ib0"}


@pytest.mark.parametrize(
    "change",
    [
        {"SLURM_JOB_ID": "13"},
        {"SLURMD_NODENAME": "n2"},
        {"SLURM_STEP_ID": "4"},
        {"SLURM_STEP_ID": "extern"},
        {"SROBUST_WATCH": "1"},
    ],
)
def test_what_is_no_rank_of_the_job_says_nothing(tmp_path: Path, change: dict[str, str]) -> None:
    """Another job, another node, the test's own step, Slurm's, and the watch step; then the caller's are kept."""
    process(tmp_path, 9, {**RANK, "NCCL_DEBUG": "INFO", **change})
    (tmp_path / "11").mkdir()
    assert job_environment.of_ranks(tmp_path, OWN) is None
    assert job_environment.merged({"NCCL_DEBUG": "WARN"}, None) == {"NCCL_DEBUG": "WARN"}


def test_the_jobs_variables_take_the_place_of_the_callers() -> None:
    """All of them: a variable that the job does not set is not set in the test."""
    base = {"NCCL_DEBUG": "WARN", "PATH": "/bin", "GLOO_SOCKET_IFNAME": "lo"}
    assert job_environment.merged(base, {"UCX_TLS": "rc"}) == {"PATH": "/bin", "UCX_TLS": "rc"}


def test_whose_variables_were_used_is_said() -> None:
    """The job's, the command's, or each on some nodes."""
    assert environment_note({"n1": True}) == "the tests had the NCCL_, UCX_ and GLOO_ variables of the job's own ranks"
    assert "this command's NCCL_" in environment_note({"n1": False})
    assert "this command's on n2: no rank" in environment_note({"n1": True, "n2": False})
