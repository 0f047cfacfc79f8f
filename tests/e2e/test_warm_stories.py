"""`srobust run --robust-warm`: the next attempt starts from processes that have imported everything already."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import Submit, Training  # type: ignore[import-not-found]
from helpers import wait_until

from slurm_robust.devcluster.cluster import DevCluster
from slurm_robust.supervise.agent import procfs

pytestmark = [pytest.mark.e2e, pytest.mark.slurm, pytest.mark.variant, pytest.mark.timeout(240)]
Cluster = Callable[..., DevCluster]


def of_job(job: Training, what: str = "") -> Iterator[tuple[int, dict[str, str]]]:
    """The ranks' main processes and the warm ones, with the environment that they were started with."""
    for pid in procfs.pids():
        env = procfs.environ(pid)
        stat = procfs.stat(pid)
        # Other clusters of this machine have jobs and nodes of the same names.
        own = env.get("SROBUST_CONFIG") == job.cluster.env["SROBUST_CONFIG"] and not env.get("SROBUST_WATCH")
        mine = own and env.get("SLURM_JOB_ID") == job.id and env.get("SLURMD_NODENAME")
        if mine and stat is not None and stat.alive and "train.py" in procfs.command_line(pid):
            parent = procfs.stat(stat.ppid)
            if parent is not None and parent.command.startswith("slurmstepd") and env.get("SROBUST_WARM", "") == what:
                yield pid, env


def warm_processes(job: Training) -> dict[int, int]:
    """Task → the pid of its process that was started warm."""
    return {int(env["SLURM_PROCID"]): pid for pid, env in of_job(job, "wait")}


def kill_rank(job: Training, rank: int, warm: dict[int, int]) -> None:
    """End a rank by a signal: a restart in place follows."""
    everybody = [*of_job(job, "record"), *of_job(job, "wait")]
    pid = next(p for p, env in everybody if env["SLURM_PROCID"] == str(rank) and p not in warm.values())
    os.kill(pid, signal.SIGKILL)


def ready(job: Training, count: int = 1) -> dict[int, int]:
    """Wait until warm processes wait."""
    wait_until(lambda: sum("and wait" in line["text"] for line in job.told("warm")) >= count, 90, job.everything())
    return warm_processes(job)


def test_a_restart_in_place_starts_from_warm_processes(cluster: Cluster, submit: Submit) -> None:
    """They become the ranks, and other warm ones follow them; at the job's end none is left."""
    dev = cluster(standby=0, nodes=3)
    job = submit(dev, steps=100_000, options="-N2 -n2 --robust-warm")
    warm = ready(job)
    assert sorted(warm) == [0, 1]
    kill_rank(job, 1, warm)
    resumed = job.hears("resumed")
    assert resumed["resume_step"] > 0
    assert [line for line in job.told("warm") if "saved_s" in line], job.everything()
    assert {pid for pid, _ in of_job(job, "wait")} >= set(warm.values())
    dev.run(["scancel", job.id])
    job.ends()
    assert not [*of_job(job, "wait"), *of_job(job, "record")]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_warm_process_that_was_killed_or_frozen_costs_nothing(
    cluster: Cluster, submit: Submit, number: signal.Signals
) -> None:
    """The attempt starts cold within a second, and the frozen process is gone."""
    dev = cluster(standby=0, nodes=3)
    job = submit(dev, steps=100_000, options="-N2 -n2 --robust-warm")
    warm = ready(job)
    os.kill(warm[0], number)
    kill_rank(job, 1, warm)
    job.hears("resumed", 90)
    cold = next(line for line in job.told("warm") if "starts cold" in line["text"])
    assert "1 of 2 warm processes do not answer" in cold["text"]
    stopped = next(line for line in job.story() if line["at_s"] >= job.told("decided")[0]["at_s"])
    assert job.told("relaunched")[0]["at_s"] - stopped["at_s"] < 5.0
    wait_until(lambda: not any(procfs.lives(pid) for pid in warm.values()), 10, "the end of all warm processes")
    assert not job.told("claimed")


def test_an_attempt_of_another_shape_starts_cold(cluster: Cluster, submit: Submit) -> None:
    """A node that loses a GPU is left for the spare one: the warm step has no process there."""
    dev = cluster(standby=0, nodes=3)
    job = submit(dev, nodes=3, steps=100_000, options="-N2 -n2 --robust-warm")
    warm = ready(job)
    dev.add_kmsg(job.rank_node(1), "NVRM: Xid (PCI:0000:3b:00): 79, pid=0, GPU has fallen off the bus.")
    assert job.hears("decided", 90)["road"] == "spare_in_allocation", job.everything()
    job.hears("resumed", 90)
    assert any("another shape" in line["text"] for line in job.told("warm")), job.everything()
    wait_until(lambda: not any(procfs.lives(pid) for pid in warm.values()), 10, "the end of all warm processes")


def test_warm_processes_of_a_cancelled_job_and_of_a_killed_launcher_are_gone(cluster: Cluster, submit: Submit) -> None:
    """Also a frozen one, which Slurm kills with its step; and the training is not touched by its supervisor's end."""
    dev = cluster(standby=0, nodes=3)
    job = submit(dev, steps=100_000, options="-N2 -n2 --robust-warm")
    first = ready(job)
    supervisor = next(
        p
        for p in procfs.pids()
        if "-m slurm_robust.supervise " in procfs.command_line(p)
        and procfs.environ(p).get("SLURM_JOB_ID") == job.id
        and str(dev.directory) in str(procfs.environ(p))
    )
    os.kill(supervisor, signal.SIGKILL)
    wait_until(lambda: not any(procfs.lives(pid) for pid in first.values()), 20, "the end of the first warm step")
    assert not job.told("suspected")
    second = ready(job, 2)
    os.kill(second[1], signal.SIGSTOP)
    dev.run(["scancel", job.id])
    job.ends()
    assert not any(procfs.lives(pid) for pid in second.values())


def test_a_job_that_ends_well_does_not_wait_for_its_warm_step(cluster: Cluster, submit: Submit) -> None:
    """It ends with the training."""
    dev = cluster(standby=0, nodes=3)
    job = submit(dev, steps=250, options="-N2 -n2 --robust-warm")
    warm = ready(job)
    assert job.ends().state == "COMPLETED"
    assert not any(procfs.lives(pid) for pid in warm.values())
    assert "Killed" not in job.output()


def test_a_command_without_warm_processes_says_why(cluster: Cluster, submit: Submit, tmp_path: Path) -> None:
    """And trains as without the option."""
    dev = cluster(standby=0, nodes=3)
    job = submit(dev, nodes=2, steps=5, command="srobust run --robust-warm env")
    assert job.ends().state == "COMPLETED"
    assert [line["text"] for line in job.told("warm")] == [
        "no warm restarts: the command is no Python (env): what it does before Python would be done twice"
    ]
