from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest
from devcluster_helpers import ROOT, node_state, running, submit
from helpers import wait_until

from slurm_robust.devcluster import machine, members, process
from slurm_robust.devcluster.cluster import DevCluster, DevClusterError, Spec

pytestmark = pytest.mark.slurm

Factory = Callable[[Spec], DevCluster]


@pytest.mark.parametrize("proctrack", ["cgroup", "linuxproc"])
def test_a_node_loses_power(devcluster_factory: Factory, proctrack: str) -> None:
    """Slurmd, slurmstepds and all processes vanish, those with a wiped environment too; Slurm sees the node DOWN."""
    if proctrack == "cgroup" and not (ROOT and machine.cgroup_works("srobust-test")):
        pytest.skip("no writable cgroup v1 freezer on this machine, so proctrack/cgroup cannot run")
    cluster = devcluster_factory(Spec(nodes=3, slurmd_timeout_s=2, proctrack=proctrack))  # type: ignore[arg-type]
    mark = cluster.layout.work / "wiped"
    script = f"srun -N3 --no-kill sh -c 'env -i sleep 300 & [ $SLURMD_NODENAME = n2 ] && echo $! >{mark}; sleep 300'"
    job_id = submit(cluster, script, "-N3", "--no-kill", "--exclusive")
    running(cluster, job_id)
    wait_until(
        lambda: len(cluster.processes(job_id)) >= 7 and mark.exists() and mark.read_text(), 10, "all ranks have started"
    )
    wiped = process.identify(int(mark.read_text()))
    assert wiped is not None
    elsewhere = cluster.processes(job_id, "n1") + cluster.processes(job_id, "n3")

    cluster.kill_slurmd("n2")

    assert not wiped.alive
    assert cluster.slurmd_pid("n2") is None
    assert cluster.processes(node="n2") == []
    assert members.stepds(cluster.record, "n2") == []
    assert set(elsewhere) <= set(cluster.processes(job_id)), "the other nodes' processes live on"
    wait_until(lambda: node_state(cluster, "n2") == "down", 20, "n2 is DOWN")
    cluster.start_slurmd("n2")
    cluster.wait_ready()
    with pytest.raises(DevClusterError, match="runs already"):
        cluster.start_slurmd("n2")
    cluster.down()


def sleeping(devcluster: DevCluster, job_id: int) -> set[int]:
    """The job's processes that have become the command `sleep`; a launch has others for a moment."""
    pids = devcluster.processes(job_id)
    return {pid for pid in pids if (found := process.read_stat(pid)) and found.name == "sleep"}


def test_slurmd_alone_dies(devcluster: DevCluster) -> None:
    """With processes=False the ranks go on, as when slurmd crashes."""
    job_id = submit(devcluster, "exec sleep 300", "-wn4")
    running(devcluster, job_id)
    before = wait_until(lambda: sleeping(devcluster, job_id), 10, "it has started")
    devcluster.kill_slurmd("n4", processes=False)
    assert devcluster.slurmd_pid("n4") is None
    assert before == sleeping(devcluster, job_id)
    devcluster.start_slurmd("n4")
    devcluster.wait_ready()
    devcluster.run(["scancel", str(job_id)])
    wait_until(lambda: not devcluster.processes(job_id), 15, "the new slurmd ends what the old one started")


def test_a_node_freezes_and_thaws(devcluster: DevCluster) -> None:
    """Frozen, slurmd and its slurmstepds are stopped and the ranks only with `tasks`; thawed, the job can end."""
    job_id = submit(devcluster, "sleep 300", "-wn3")
    running(devcluster, job_id)
    # Before, a shell that waits for its own vfork cannot be stopped.
    wait_until(lambda: sleeping(devcluster, job_id), 10, "it has started")

    def states(tasks: bool) -> set[str]:
        pids = devcluster.processes(job_id)
        if not tasks:
            pids = [found.pid for found in members.stepds(devcluster.record, "n3")]
            pids.append(devcluster.slurmd_pid("n3") or 0)
        # A frozen parent reaps nobody: what had just ended stays a zombie.
        return {found.state for pid in pids if (found := process.read_stat(pid))} - {"Z"}

    devcluster.freeze_slurmd("n3")
    wait_until(lambda: states(tasks=False) == {"T"}, 5, "slurmd and slurmstepds are stopped")
    assert "T" not in states(tasks=True)
    devcluster.freeze_slurmd("n3", tasks=True)
    wait_until(lambda: states(tasks=True) == {"T"}, 5, "the job is stopped")
    devcluster.thaw_slurmd("n3", tasks=True)
    wait_until(lambda: "T" not in states(tasks=False) | states(tasks=True), 5, "all go on")
    devcluster.run(["scancel", str(job_id)])
    wait_until(lambda: not devcluster.processes(job_id), 10, "the job ends")


def test_what_a_job_starts_while_it_is_frozen_is_frozen_too(
    devcluster: DevCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second look finds what was started between the first one and the signals."""
    with subprocess.Popen(["sleep", "60"]) as early, subprocess.Popen(["sleep", "60"]) as late:
        both = [process.identify(one.pid) for one in (early, late)]
        looks = iter([both[:1], both])
        monkeypatch.setattr(members, "jobs", lambda *_, **__: next(looks, both))
        devcluster.freeze_slurmd("n4", tasks=True)
        try:
            wait_until(lambda: {process.read_stat(one.pid).state for one in (early, late)} == {"T"}, 5, "both stop")
        finally:
            devcluster.thaw_slurmd("n4")
            early.kill()
            late.kill()


def test_slurmctld_comes_back_with_its_state(devcluster: DevCluster) -> None:
    """Killed with -9 once its state is on disk, slurmctld knows its drains and jobs again."""
    files = [devcluster.layout.state / "slurmctld" / name for name in ("node_state", "job_state")]
    job_id = submit(devcluster, "sleep 300", "-wn1")
    running(devcluster, job_id)
    before_s = [path.stat().st_mtime if path.exists() else 0 for path in files]
    devcluster.run(["scontrol", "update", "nodename=n2", "state=drain", "reason=by hand"])
    # Its start may be saved before or after this look; this change, after it. Saved as pending, it would start twice.
    devcluster.run(["scontrol", "update", f"jobid={job_id}", "comment=runs"])

    def saved() -> bool:
        return all(p.exists() and p.stat().st_mtime > old_s for p, old_s in zip(files, before_s, strict=True))

    wait_until(saved, 20, "the state is saved")
    devcluster.kill_slurmctld()
    assert devcluster.slurmctld_pid is None
    with pytest.raises(DevClusterError, match="slurmctld has ended"):
        devcluster.wait_ready(timeout_s=3)
    devcluster.start_slurmctld()
    devcluster.wait_ready()
    assert node_state(devcluster, "n2") == "drained"
    running(devcluster, job_id)
    devcluster.run(["scontrol", "update", "nodename=n2", "state=resume"])
    devcluster.run(["scancel", str(job_id)])
