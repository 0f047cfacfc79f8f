from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from devcluster_helpers import ROOT, named, node_state, running, submit
from helpers import wait_until

import slurm_robust
from slurm_robust.devcluster import machine, process
from slurm_robust.devcluster.cluster import CommandError, DevCluster, DevClusterError, Spec

pytestmark = pytest.mark.slurm

Factory = Callable[[Spec], DevCluster]


def test_six_nodes_come_up(record_property: Callable[[str, object], None]) -> None:
    """Six nodes are ready within the limit; the time goes into the report."""
    began_s = time.monotonic()
    cluster = DevCluster.up(Spec())
    took_s = time.monotonic() - began_s
    try:
        record_property("ready_s", round(took_s, 2))
        print(f"6 nodes ready in {took_s:.2f} s")
        assert took_s < 30
        assert cluster.node_names == ("n1", "n2", "n3", "n4", "n5", "n6")
        assert cluster.run(["sinfo", "-h", "-o", "%T %D"]).stdout.split() == ["idle", "6"]
    finally:
        cluster.down()


def test_a_job_has_its_gpus_on_every_node(devcluster: DevCluster) -> None:
    """Ranks on four nodes see GPU variables and their node's name as on a real cluster."""
    show = 'echo "$SLURMD_NODENAME $CUDA_VISIBLE_DEVICES $SLURM_JOB_GPUS"'
    job_id = submit(devcluster, f"srun sh -c '{show}'; {show}", "-N4", "--gres=gpu:2", "-o", "out-%j")
    out = devcluster.layout.work / f"out-{job_id}"
    wait_until(lambda: out.exists() and out.read_text().count("\n") == 5, 20, "four ranks and the batch script wrote")
    shown = sorted(out.read_text().splitlines())
    assert sorted({line.split()[0] for line in shown}) == ["n1", "n2", "n3", "n4"]
    assert [line.split()[1] for line in shown] == ["0,1"] * 5
    batch = [line for line in shown if line.split()[2:] == ["0,1"]]
    assert batch, shown


def test_what_ranks_leave_in_tmpdir_goes_with_the_cluster(devcluster: DevCluster) -> None:
    """Tasks of steps have a TMPDIR in the cluster's folder, and keep one of their own; batch scripts are left alone."""
    show = "echo ${TMPDIR:-none}"
    rank = ["srun", "--immediate=10", "sh", "-c", f"{show}; touch $TMPDIR/x"]
    assert devcluster.run(rank, env={"TMPDIR": ""}).stdout == f"{devcluster.layout.tmp}\n"
    own = devcluster.layout.work / "own"
    own.mkdir(mode=0o777)
    assert devcluster.run(rank, env={"TMPDIR": str(own)}).stdout == f"{own}\n"
    job_id = submit(devcluster, f"unset TMPDIR; {show}; srun sh -c '{show}'", "-o", "out-%j")
    out = devcluster.layout.work / f"out-{job_id}"
    wait_until(lambda: out.exists() and out.read_text().count("\n") == 2, 20, "batch script and rank wrote")
    assert out.read_text().split() == ["none", str(devcluster.layout.tmp)]


def test_commands_run_as_another_user(devcluster: DevCluster) -> None:
    """With root's cluster, jobs can be another account's; a failing command says what it wrote."""
    if not ROOT:
        assert any("not root" in notice for notice in devcluster.notices)
        return
    assert devcluster.run(["srun", "--immediate=10", "id", "-un"], user="nobody").stdout == "nobody\n"
    with pytest.raises(CommandError, match=r"Invalid user id|Access/permission denied"):
        devcluster.run(["scontrol", "update", "nodename=n1", "state=drain", "reason=x"], user="nobody")


def test_prolog_and_epilog_run_on_each_node(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The project's scripts are called by slurmd, with the environment that they need; a missing one is no error."""
    fake = short_dir / "package" / "slurm_robust" / "__init__.py"
    fake.parent.mkdir(parents=True)
    seen = short_dir / "seen"
    seen.mkdir()
    (short_dir / "package" / "prolog").mkdir()
    script = short_dir / "package" / "prolog" / "srobust-prolog"
    script.write_text(f"#!/bin/sh\nenv >{seen}/$SLURMD_NODENAME\n")
    script.chmod(0o755)
    monkeypatch.setattr(slurm_robust, "__file__", str(fake))
    cluster = DevCluster.up(Spec(nodes=2, directory=short_dir / "c"))
    try:
        cluster.run(["srun", "--immediate=10", "-N2", "true"])
        for node in cluster.node_names:
            values = dict(line.split("=", 1) for line in (seen / node).read_text().splitlines() if "=" in line)
            assert values["SROBUST_CONFIG"] == str(cluster.directory / "robust.yaml")
            assert values["SROBUST_PYTHON"]
            assert values["SLURM_SCRIPT_CONTEXT"] == "prolog_slurmd"
            assert "/usr/sbin" in values["PATH"]
        wait_until(lambda: node_state(cluster, "n1") == "idle", 10, "the epilog that is not there is no error")
    finally:
        cluster.down()


def test_two_live_side_by_side(devcluster: DevCluster, devcluster_factory: Factory) -> None:
    """Two clusters have the same node names and job ids, and ending one, with its jobs, leaves the other's alone."""
    other = devcluster_factory(Spec(nodes=2))
    assert other.name != devcluster.name
    job_id = submit(other, "srun sleep 300", "-N2")
    running(other, job_id)
    mine = submit(devcluster, "srun sleep 300", "-N2", "--exclusive")
    running(devcluster, mine)
    before = wait_until(lambda: len(p := named(devcluster.processes(mine), "sleep")) == 2 and p, 10, "both ranks")
    wait_until(other.processes, 10, "the other's job")
    other.down()
    other.down()
    assert named(devcluster.processes(mine), "sleep") == before
    running(devcluster, mine)
    devcluster.run(["scancel", str(mine)])
    wait_until(lambda: not devcluster.processes(mine), 10, "the other's job ends when it is told to")


def test_attach_sees_the_same_cluster(devcluster: DevCluster) -> None:
    """Another process needs only the folder."""
    again = DevCluster.attach(devcluster.directory)
    assert again.spec == devcluster.spec
    assert again.slurmctld_pid == devcluster.slurmctld_pid
    again.add_kmsg("n1", "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.")
    assert "Xid" in devcluster.kmsg("n1").read_text().splitlines()[-1]
    with pytest.raises(DevClusterError, match=r"n9: no such node; there are n\[1-4\]"):
        again.kill_slurmd("n9")
    with pytest.raises(DevClusterError, match=r"there already"):
        DevCluster.up(Spec(directory=devcluster.directory))
    assert again.slurmctld_pid == devcluster.slurmctld_pid


def test_the_daemon_is_started_and_killed(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Srobustd gets the cluster's configuration and log, can be killed by any signal, and goes with `down`."""
    package = short_dir / "p" / "slurm_robust" / "cli"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package.parent / "__init__.py").touch()
    main = package / "main.py"
    main.write_text("import sys\nsys.exit('no such key')\n")
    cluster = DevCluster.up(Spec(nodes=1, directory=short_dir / "c"))
    try:
        monkeypatch.setattr(machine, "python_path", lambda: str(short_dir / "p"))
        with pytest.raises(DevClusterError, match="no such key"):
            cluster.start_daemon()
        state = cluster.layout.state / "srobustd"
        main.write_text(
            "import pathlib, sys, time\nprint(sys.argv, flush=True)\n"
            f"p = pathlib.Path({str(state)!r})\np.mkdir(exist_ok=True)\n(p / 'journal').touch()\ntime.sleep(300)\n"
        )
        cluster.start_daemon()
        log = cluster.layout.log / "srobustd.log"
        wait_until(lambda: log.exists() and log.read_text(), 10, "it has written its arguments")
        assert f"'daemon', '--config', '{cluster.layout.robust_yaml}'" in log.read_text()
        assert cluster.daemon_pid
        cluster.kill_daemon(signal.SIGTERM)  # not SIGINT: a shell starts background jobs with that one ignored
        assert cluster.daemon_pid is None
        cluster.start_daemon()
        second = cluster.daemon_pid
        assert second
    finally:
        cluster.down()
    assert process.identify(second) is None or not process.environ(second)
