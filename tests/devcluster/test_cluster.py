from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers import slurm_required, wait_until

import slurm_robust
from slurm_robust.devcluster import daemons, files, machine, members, process, record
from slurm_robust.devcluster.cluster import CommandError, DevCluster, DevClusterError, Spec
from slurm_robust.devcluster.process import Process

pytestmark = pytest.mark.slurm

Factory = Callable[[Spec], DevCluster]
ROOT = os.geteuid() == 0


def node_state(cluster: DevCluster, node: str) -> str:
    """A node's state, without the star of one that does not respond."""
    return cluster.run(["sinfo", "-h", "-n", node, "-o", "%T"]).stdout.strip().rstrip("*")


def submit(cluster: DevCluster, script: str, *options: str, user: str | None = None) -> int:
    """Submit a batch job; its id."""
    done = cluster.run(["sbatch", "--parsable", *options, "--wrap", script], user=user)
    return int(done.stdout)


def running(cluster: DevCluster, job_id: int) -> None:
    """Wait until a job runs."""
    wait_until(
        lambda: cluster.run(["squeue", "-h", "-j", str(job_id), "-o", "%T"]).stdout.strip() == "RUNNING",
        20,
        f"job {job_id} runs",
    )


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A folder whose path is short enough for sockets, which pytest's own often is not."""
    with tempfile.TemporaryDirectory(prefix="dc-test-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


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
    before = wait_until(lambda: len(p := devcluster.processes(mine)) >= 5 and p, 10, "all of it has started")
    assert other.processes()
    other.down()
    other.down()
    assert [pid for pid in devcluster.processes(mine) if pid in before] == before
    running(devcluster, mine)
    devcluster.run(["scancel", str(mine)])
    wait_until(lambda: not devcluster.processes(mine), 10, "the other's job ends when it is told to")


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
    wait_until(lambda: len(cluster.processes(job_id)) >= 7 and mark.exists(), 10, "all ranks have started")
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


def test_slurmd_alone_dies(devcluster: DevCluster) -> None:
    """With processes=False the ranks go on, as when slurmd crashes."""
    job_id = submit(devcluster, "sleep 300", "-wn4")
    running(devcluster, job_id)
    before = wait_until(lambda: devcluster.processes(job_id), 10, "it has started")
    devcluster.kill_slurmd("n4", processes=False)
    assert devcluster.slurmd_pid("n4") is None
    assert devcluster.processes(job_id, "n4") == before
    devcluster.start_slurmd("n4")
    devcluster.wait_ready()
    devcluster.run(["scancel", str(job_id)])
    wait_until(lambda: not devcluster.processes(job_id), 15, "the new slurmd ends what the old one started")


def test_a_node_freezes_and_thaws(devcluster: DevCluster) -> None:
    """Frozen, slurmd and its slurmstepds are stopped and the ranks only with `tasks`; thawed, the job can end."""
    job_id = submit(devcluster, "sleep 300", "-wn3")
    running(devcluster, job_id)
    wait_until(lambda: len(devcluster.processes(job_id)) >= 2, 10, "it has started")

    def states(tasks: bool) -> set[str]:
        pids = devcluster.processes(job_id)
        if not tasks:
            pids = [found.pid for found in members.stepds(devcluster.record, "n3")]
            pids.append(devcluster.slurmd_pid("n3") or 0)
        return {found.state for pid in pids if (found := process.read_stat(pid))}

    devcluster.freeze_slurmd("n3")
    wait_until(lambda: states(tasks=False) == {"T"}, 5, "slurmd and slurmstepds are stopped")
    assert "T" not in states(tasks=True)
    devcluster.freeze_slurmd("n3", tasks=True)
    wait_until(lambda: states(tasks=True) == {"T"}, 5, "the job is stopped")
    devcluster.thaw_slurmd("n3", tasks=True)
    wait_until(lambda: "T" not in states(tasks=False) | states(tasks=True), 5, "all go on")
    devcluster.run(["scancel", str(job_id)])
    wait_until(lambda: not devcluster.processes(job_id), 10, "the job ends")


def test_slurmctld_comes_back_with_its_state(devcluster: DevCluster) -> None:
    """Killed with -9 once its state is on disk, slurmctld knows its drains and jobs again."""
    saved = devcluster.layout.state / "slurmctld" / "node_state"
    job_id = submit(devcluster, "sleep 300", "-wn1")
    running(devcluster, job_id)
    before_s = saved.stat().st_mtime if saved.exists() else 0
    devcluster.run(["scontrol", "update", "nodename=n2", "state=drain", "reason=by hand"])
    wait_until(lambda: saved.exists() and saved.stat().st_mtime > before_s, 20, "the state is saved")
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


def test_attach_sees_the_same_cluster(devcluster: DevCluster) -> None:
    """Another process needs only the folder."""
    again = DevCluster.attach(devcluster.directory)
    assert again.spec == devcluster.spec
    assert again.slurmctld_pid == devcluster.slurmctld_pid
    again.add_kmsg("n1", "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.")
    assert "Xid" in devcluster.kmsg("n1").read_text().splitlines()[-1]
    with pytest.raises(DevClusterError, match=r"n9: no such node; there are n\[1-4\]"):
        again.kill_slurmd("n9")
    with pytest.raises(DevClusterError, match=r"not empty"):
        DevCluster.up(Spec(directory=devcluster.directory))
    assert again.slurmctld_pid == devcluster.slurmctld_pid


def test_down_leaves_nothing(short_dir: Path) -> None:
    """After `down` with a job on it: no process, no cgroup, no device, no folder; `keep` leaves the logs."""
    cluster = DevCluster.up(Spec(nodes=2, directory=short_dir / "c"))
    job_id = submit(cluster, "env -i setsid sleep 300 & srun -N2 sleep 300", "-N2")
    running(cluster, job_id)
    wait_until(lambda: len(cluster.processes(job_id)) >= 5, 10, "all of it has started")
    assert stat.S_ISCHR(cluster.layout.gpu(7).stat().st_mode)
    now = cluster.record
    before = members.everything(now)
    assert len(before) > 8
    cluster.down(keep=True)
    assert not [found for found in before if found.alive]
    assert members.everything(now) == set(now.live().values()) == set()
    assert (cluster.layout.log / "slurmctld.log").exists()
    cluster.down()
    assert not cluster.directory.exists()
    assert not files.cgroup_top(now.settings).exists()
    cluster.down()


def test_up_that_fails_leaves_nothing_and_says_why(short_dir: Path) -> None:
    """A slurm.conf that slurmctld refuses: its own words in the error, and no trace."""
    spec = Spec(nodes=2, directory=short_dir / "c", slurm_conf_extra="SelectType=select/nonsense")
    with pytest.raises(DevClusterError, match="nonsense"):
        DevCluster.up(spec)
    assert not (short_dir / "c").exists()


def test_down_when_half_up(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An `up` killed between its steps leaves a cluster that `down` can end from its folder alone."""

    def stop(*_args: object, **_named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(daemons, "wait_ready", stop)
    monkeypatch.setattr(DevCluster, "down", lambda self, **_: None)
    with pytest.raises(KeyboardInterrupt):
        DevCluster.up(Spec(nodes=2, directory=short_dir / "c"))
    monkeypatch.undo()
    cluster = DevCluster.attach(short_dir / "c")
    left = members.everything(cluster.record)
    assert len(left) >= 3
    # The worst moment: processes started, and not yet on record.
    with record.changed(cluster.directory) as table:
        table.clear()
    cluster.down()
    assert not [found for found in left if found.alive]
    assert not (short_dir / "c").exists()


def test_down_never_kills_a_stranger(short_dir: Path) -> None:
    """A recorded pid that is now another's is left alone, and so is a shell that merely speaks with the cluster."""
    cluster = DevCluster.up(Spec(nodes=1, directory=short_dir / "c"))
    stranger = subprocess.Popen(["sleep", "60"])
    shell = subprocess.Popen(["sleep", "60"], env=cluster.env, cwd=cluster.layout.work)
    try:
        found = process.identify(stranger.pid)
        assert found is not None
        with record.changed(cluster.directory) as table:
            table["srobustd"] = Process(found.pid, found.start_ticks - 100)
        assert cluster.daemon_pid is None
        cluster.down()
        assert stranger.poll() is None
        assert shell.poll() is None
    finally:
        for child in (stranger, shell):
            child.kill()
            child.wait()
        cluster.down()


def test_a_recorded_pid_of_another_boot_is_a_stranger(short_dir: Path) -> None:
    """After a reboot start times begin anew: nothing on record is ours any more."""
    cluster = DevCluster.up(Spec(nodes=1, directory=short_dir / "c"))
    try:
        path = cluster.layout.record
        raw = path.read_text()
        path.write_text(json.dumps(json.loads(raw) | {"boot_id": "another"}))
        assert cluster.slurmctld_pid is None
        assert cluster.record.live() == {}
        path.write_text(raw)
        assert cluster.slurmctld_pid is not None
    finally:
        cluster.down()


def ordinary_python(folder: Path) -> list[str]:
    """A Python that `nobody` may run, with this package and what it imports; empty where this machine has none.

    Root's own Python and checkout often lie where nobody else may look.
    """
    shutil.copytree(Path(slurm_robust.__file__).parent, folder / "slurm_robust", ignore=shutil.ignore_patterns("*.pyc"))
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    path = f"{folder}:{sysconfig.get_path('purelib')}:{sysconfig.get_path('platlib')}"
    for python in (sys.executable, f"/usr/bin/{version}", f"/usr/local/bin/{version}"):
        words = ["runuser", "-u", "nobody", "--", "env", f"PYTHONPATH={path}", "PYTHONDONTWRITEBYTECODE=1", python]
        trial = [*words, "-c", "import slurm_robust.devcluster.cluster, click"]
        if subprocess.run(trial, capture_output=True, timeout=30, check=False).returncode == 0:
            return words
    return []


@pytest.mark.skipif(not ROOT, reason="already an ordinary user: every other test here shows it")
@pytest.mark.parametrize(("auth", "folder_mode"), [("none", 0o1777), ("munge", 0o1777), ("", 0o777)])
def test_an_ordinary_user_has_a_cluster(short_dir: Path, auth: str, folder_mode: int) -> None:
    """Without root it comes up, runs a job with GPUs, says what is missing, and goes; root trusts no such record.

    In a folder that others may write to munged refuses to run: then auth/none is taken, with a clear word.
    """
    python = ordinary_python(short_dir)
    if not python:
        message = f"`nobody` may run neither {sys.executable} nor a system Python of that version with our dependencies"
        pytest.fail(message) if slurm_required() else pytest.skip(message)
    script = (
        "import pathlib, sys\n"
        "from slurm_robust.devcluster.cluster import DevCluster, Spec\n"
        "c = DevCluster.up(Spec(nodes=2, directory=pathlib.Path(sys.argv[1]), auth=sys.argv[2] or None))\n"
        "print(c.notices)\n"
        "show = 'id -un; echo $CUDA_VISIBLE_DEVICES'\n"
        "print(c.run(['srun', '--immediate=10', '-N2', '--gres=gpu:2', 'sh', '-c', show]).stdout)\n"
    )
    short_dir.chmod(folder_mode)
    folder = short_dir / "c"
    down = [*python, "-m", "slurm_robust.cli.main", "devcluster", "down", "--dir", str(folder)]
    try:
        done = subprocess.run(
            [*python, "-c", script, str(folder), auth],
            cwd=short_dir,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines().count("nobody") == done.stdout.splitlines().count("0,1") == 2
        assert "not root" in done.stdout
        assert ("auth/none instead of munge" in done.stdout) == (auth == "")
        with pytest.raises(DevClusterError, match="another user"):
            DevCluster.attach(folder)
    finally:
        ended = subprocess.run(down, cwd=short_dir, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 0, ended.stderr
    assert not folder.exists()


def test_the_daemon_is_started_and_killed(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Srobustd gets the cluster's configuration and log, can be killed by any signal, and goes with `down`."""
    package = short_dir / "p" / "slurm_robust" / "cli"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package.parent / "__init__.py").touch()
    (package / "main.py").write_text("import sys, time\nprint(sys.argv, flush=True)\ntime.sleep(300)\n")
    cluster = DevCluster.up(Spec(nodes=1, directory=short_dir / "c"))
    try:
        monkeypatch.setattr(machine, "python_path", lambda: str(short_dir / "p"))
        cluster.start_daemon()
        log = cluster.layout.log / "srobustd.log"
        wait_until(lambda: log.exists() and log.read_text(), 10, "it has written its arguments")
        assert f"'daemon', '--config', '{cluster.layout.robust_yaml}'" in log.read_text()
        assert cluster.daemon_pid
        cluster.kill_daemon(signal.SIGINT)
        assert cluster.daemon_pid is None
        cluster.start_daemon()
        second = cluster.daemon_pid
        assert second
    finally:
        cluster.down()
    assert process.identify(second) is None or not process.environ(second)
