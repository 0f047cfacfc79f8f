"""GPUs that are not free when a job is to get them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_gpus import GH200, MIG, FakeGpus

from slurm_robust.nodecheck.checks.gpu import gpu_in_use
from slurm_robust.nodecheck.checks.gpu.gpu_in_use import check
from slurm_robust.nodecheck.engine import gpu_profiles, runner
from slurm_robust.nodecheck.engine.context import Context

GIB = 1 << 30


def finding(
    processes: dict[int, list[dict[str, Any]]], used_gib: dict[int, int] | None = None, **change: Any
) -> tuple[str, str]:
    """Status and reason for two H100 with these processes and this memory in use."""
    gpus = []
    for index in range(2):
        memory = {"total": 80 * GIB, "used": (used_gib or {}).get(index, 0) * GIB, "reserved": GIB}
        pids = [{"pid": one["pid"], "used": GIB} for one in processes.get(index, [])]
        gpu = {"index": index, "bus": f"0000:{index}b:00", "minor": index, "uuid": f"u{index}", "model": "NVIDIA H200"}
        gpu |= {"lost": "", "errors": {}, "profile": gpu_profiles.of(change.pop("model", "H200"))}
        gpus.append({**gpu, "values": {"memory": memory, "processes": pids, "mig_mode": [change.pop("mig", 0), 0]}})
    told = {str(one["pid"]): {"there": True, "job": None, **one} for held in processes.values() for one in held}
    facts = {"state": "", "detail": "", "hung": {}, "system": {}, "stage": "prolog", "gpus": gpus, "job": 7}
    facts |= {"job_gpus": [0], "live_jobs": [], "processes": told, "root": True, **change}
    result = check.judge(facts, check.settings({}))
    return result.status.value, result.reason


PYTHON = {"pid": 41, "name": "python"}
FREE, USED, HELD = ("pass", "gpus_free"), ("warn", "gpu_in_use"), ("fail", "memory_held")


@pytest.mark.parametrize(
    ("processes", "used_gib", "change", "expected"),
    [
        ({}, {}, {}, FREE),
        ({0: [PYTHON]}, {0: 40}, {}, USED),
        ({1: [PYTHON]}, {1: 40}, {}, FREE),  # another job's GPU
        ({0: [{**PYTHON, "job": 5}]}, {0: 40}, {}, USED),  # of a job that has ended
        ({0: [{**PYTHON, "job": 5}]}, {0: 40}, {"live_jobs": [5]}, FREE),  # shared with a running job
        ({0: [{**PYTHON, "job": 7}]}, {0: 40}, {}, FREE),
        ({0: [{**PYTHON, "job": 7}]}, {0: 40}, {"stage": "epilog"}, USED),  # this job's own, left behind
        ({0: [{"pid": 9, "name": "nvidia-cuda-mps"}]}, {0: 1}, {}, FREE),
        ({0: [{**PYTHON, "there": False}]}, {0: 40}, {}, FREE),  # it has just ended
        ({}, {0: 40}, {}, HELD),
        ({}, {1: 40}, {}, FREE),
        ({}, {0: 4}, {}, FREE),  # 5 %
        ({}, {0: 40}, {"root": False}, ("warn", "memory_held")),  # a user sees no processes of others
        ({}, {0: 40}, {"stage": "epilog"}, ("warn", "memory_held")),
        ({}, {0: 40}, {"live_jobs": [3]}, FREE),  # may be the other job's
        ({}, {0: 40}, {"mig": 1}, FREE),
        ({}, {0: 40}, {"model": "GH200 480GB"}, FREE),  # the kernel uses this memory too
        ({0: [PYTHON]}, {0: 40}, {"job_gpus": [], "live_jobs": []}, USED),
        ({1: [PYTHON]}, {1: 40}, {"job_gpus": [], "live_jobs": [3]}, ("skip", "jobs_run")),
        ({0: [PYTHON]}, {0: 40}, {"stage": "full"}, FREE),  # on a node without Slurm anybody may use a GPU
    ],
)
def test_who_holds_a_gpu(
    processes: dict[int, list[dict[str, Any]]],
    used_gib: dict[int, int],
    change: dict[str, Any],
    expected: tuple[str, str],
) -> None:
    """Only the job's own GPUs, or all where no job runs; what can be ended warns, memory of nobody fails."""
    assert finding(processes, used_gib, **change) == expected


def test_what_ends_while_we_look_is_no_finding(gpus: FakeGpus) -> None:
    """A process that NVML still lists and the kernel no longer has is on its way out."""
    gpus.scenario("gpu.0.processes=4194301:100", "gpu.0.memory.used_mib=100")
    assert gpus.look("gpu_in_use", "prolog", job_id=7, job_gpus=(0,)).status.value == "pass"


def test_a_live_process_is_named(gpus: FakeGpus) -> None:
    """Name and number, as `ps` shows them."""
    gpus.scenario("gpu.0.processes=1:100", "gpu.0.memory.used_mib=20000")
    found = gpus.look("gpu_in_use", "prolog", job_id=7, job_gpus=(0,))
    assert (found.status.value, found.reason) == ("warn", "gpu_in_use")
    assert "(1)" in found.sentence


@pytest.mark.parametrize("holder", ["graphics", "mps"])
def test_memory_of_a_desktop_or_a_client_of_mps_is_held_by_somebody(
    gpus: FakeGpus, holder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVML lists what draws, and what computes through MPS, apart from other processes."""
    monkeypatch.setattr(gpu_in_use, "_live_jobs", lambda context: [])  # this machine may run some, for other tests
    gpus.scenario("gpu.0.memory.used_mib=20000")
    assert gpus.verdict("gpu_in_use", stage="prolog", job_id=7, job_gpus=(0,))[1] == "memory_held"
    gpus.scenario("gpu.0.memory.used_mib=20000", f"gpu.0.{holder}=1:20000")
    assert gpus.verdict("gpu_in_use", stage="prolog", job_id=7, job_gpus=(0,)) == ("pass", "gpus_free")


@pytest.mark.parametrize(
    ("environ", "expected"),
    [(b"SLURM_JOB_ID=5\0X=1\0", 5), (b"A=SLURM_JOB_ID=9\0", None), (b"SLURM_JOB_ID=5x\0", None), (b"\xff", None)],
)
def test_a_process_without_a_control_group_names_its_job(tmp_path: Path, environ: bytes, expected: int | None) -> None:
    """Where Slurm does not use control groups (proctrack/linuxproc, pgid) its environment tells."""
    folder = tmp_path / "proc/41"
    folder.mkdir(parents=True)
    (folder / "cgroup").write_text("0::/system.slice/slurmd.service\n")
    (folder / "comm").write_text("python\n")
    (folder / "environ").write_bytes(environ)
    assert gpu_in_use.process(Context("n1", root=tmp_path), 41)["job"] == expected
    (folder / "cgroup").write_text("0::/system.slice/slurmstepd.scope/job_8/step_0/user/task_0\n")
    assert gpu_in_use.process(Context("n1", root=tmp_path), 41)["job"] == 8


def test_a_control_group_that_is_named_by_a_sluid_is_its_jobs(tmp_path: Path) -> None:
    """Slurm 26.05 names a job's group by its SLUID: the job's slurmstepd is in the same one, and knows the number."""
    scope = "0::/system.slice/slurmstepd.scope"
    for pid, name, line, group in (
        (41, "python", "python", f"{scope}/sEKNKTV3WPV500/step_0/user/task_0\n"),
        (42, "python", "python", f"{scope}/sEKNKTV3WPV5ZZ/step_0/user/task_0\n"),
        (16, "slurmstepd", "slurmstepd: [8.0]", f"{scope}/sEKNKTV3WPV500/step_0/slurm\n"),
    ):
        folder = tmp_path / "proc" / str(pid)
        folder.mkdir(parents=True)
        (folder / "cgroup").write_text(group)
        (folder / "comm").write_text(f"{name}\n")
        (folder / "cmdline").write_text(f"{line}\0")
        (folder / "stat").write_text(f"{pid} ({name}) S 1 " + "0 " * 40)
    context = Context("n1", root=tmp_path)
    assert gpu_in_use.process(context, 41)["job"] == 8
    assert gpu_in_use.process(context, 42)["job"] is None


@pytest.mark.parametrize("machine", [GH200, MIG])
def test_memory_that_says_nothing_is_not_judged(gpus: FakeGpus, machine: str) -> None:
    """Memory that is the kernel's too, or an instance's."""
    gpus.scenario(machine, "gpu.*.memory.used_mib=30000")
    assert gpus.look("gpu_in_use", "prolog", job_id=7, job_gpus=(0,)).status.value == "pass"


def test_what_is_watched_under_a_fresh_verdict(gpus: FakeGpus) -> None:
    """Nobody more may have the GPUs open; memory in use on a GPU of others leaves the question open."""

    def watched() -> tuple[tuple[str, ...], ...]:
        context = gpus.context("prolog", job_id=7, job_gpus=(1,))
        return runner.run([check], context, {}, 20.0).results[0].conditions

    assert [(kind, path) for kind, path, _ in watched()] == [("most", "/sys/module/nvidia_uvm/refcnt")]
    gpus.scenario("gpu.0.memory.used_mib=40000")
    assert watched() == (("never",),)
