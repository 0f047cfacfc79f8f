from __future__ import annotations

import json
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from devcluster_helpers import running, submit
from helpers import wait_until

from slurm_robust.devcluster import daemons, files, members, process, record
from slurm_robust.devcluster.cluster import DevCluster, DevClusterError, Spec
from slurm_robust.devcluster.process import ClusterProcess

pytestmark = pytest.mark.slurm


def test_down_leaves_nothing(short_dir: Path) -> None:
    """After `down` with a job on it: no process, no cgroup, no device, no folder; `keep` leaves the logs."""
    cluster = DevCluster.up(Spec(nodes=2, directory=short_dir / "c"))
    job_id = submit(cluster, "env -i setsid sleep 300 & srun -N2 sleep 300", "-N2")
    running(cluster, job_id)
    wait_until(lambda: len(cluster.processes(job_id)) >= 5, 10, "all of it has started")
    assert stat.S_ISCHR(cluster.layout.gpu(7).stat().st_mode)
    now = cluster.record
    before = wait_until(lambda: found if len(found := members.everything(now)) > 8 else None, 10, "all of it is seen")
    assert before is not None
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


def test_a_second_up_harms_nothing(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two `up` of one folder: one comes up, the other says so, also where both found the folder empty."""
    folder = short_dir / "c"
    cluster = DevCluster.up(Spec(nodes=1, directory=folder))
    try:
        before = members.everything(cluster.record)
        with pytest.raises(DevClusterError, match=f"devcluster down --dir {folder}"):
            DevCluster.up(Spec(nodes=1, directory=folder))
        # The race: it looked before the first one had written anything.
        monkeypatch.setattr(files, "make_directory", lambda _spec: folder)
        with pytest.raises(DevClusterError, match="there already"):
            DevCluster.up(Spec(nodes=1, directory=folder))
        assert before
        assert all(found.alive for found in before)
        assert cluster.run(["sinfo", "-h", "-o", "%T"]).stdout.strip() == "idle"
        assert sorted(path.name for path in folder.iterdir() if path.name.startswith(".")) == []
    finally:
        cluster.down()


def test_down_without_a_record(short_dir: Path) -> None:
    """Somebody removed cluster.json while it ran: `down` still ends all of it and cleans up."""
    cluster = DevCluster.up(Spec(nodes=1, directory=short_dir / "c"))
    now = cluster.record
    before = members.everything(now)
    cluster.layout.record.unlink()
    with pytest.raises(DevClusterError, match=f"devcluster down --dir {cluster.directory}"):
        DevCluster.up(Spec(nodes=1, directory=cluster.directory))
    cluster.down()
    assert not [found for found in before if found.alive]
    assert not cluster.directory.exists()
    assert not files.cgroup_top(now.settings).exists()


def test_down_leaves_what_only_looks_like_a_devcluster(short_dir: Path) -> None:
    """A folder of somebody's own, with names that a devcluster has too, is not touched."""
    kept = short_dir / "mine" / "log" / "precious"
    kept.parent.mkdir(parents=True)
    kept.write_text("years of work\n")
    (short_dir / "mine" / "work").mkdir()
    with pytest.raises(DevClusterError, match="nothing in it was changed"):
        DevCluster(short_dir / "mine").down()
    assert kept.read_text() == "years of work\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("seen", ["cluster.json", "munge/socket", "log/slurmctld.log", "log/slurmd.n1.log"])
def test_up_interrupted(short_dir: Path, number: int, seen: str) -> None:
    """Ctrl-C leaves nothing; what a kill leaves, the next `up` names, and `down` ends."""
    folder = short_dir / "c"
    words = [sys.executable, "-m", "slurm_robust.cli.main", "devcluster"]
    where = ["--dir", str(folder)]
    for _ in range(9):
        with subprocess.Popen(
            [*words, "up", "--nodes", "2", *where], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as up:
            wait_until((folder / seen).exists, 20, seen, poll_s=0.002)
            up.send_signal(number)
            up.communicate(timeout=60)
        if up.returncode:
            break
        # It was through before the signal came.
        subprocess.run([*words, "down", *where], check=True, capture_output=True)
    assert up.returncode
    ours = f"{members.MARK}={folder}".encode()
    if number != signal.SIGKILL:
        assert not folder.exists()
    if folder.exists():
        again = subprocess.run([*words, "up", "--nodes", "2", *where], capture_output=True, text=True, check=False)
        assert again.returncode == 1
        assert f"srobust devcluster down --dir {folder}" in again.stderr
        subprocess.run([*words, "down", *where], check=True, capture_output=True)
    assert not folder.exists()
    assert not [pid for pid in process.every_pid() if ours in _environ(pid)]


def _environ(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def test_down_never_kills_a_stranger(short_dir: Path) -> None:
    """A recorded pid that is now another's is left alone, and so is a shell that merely speaks with the cluster."""
    cluster = DevCluster.up(Spec(nodes=1, directory=short_dir / "c"))
    stranger = subprocess.Popen(["sleep", "60"])
    shell = subprocess.Popen(["sleep", "60"], env=cluster.env, cwd=cluster.layout.work)
    try:
        found = process.identify(stranger.pid)
        assert found is not None
        with record.changed(cluster.directory) as table:
            table["srobustd"] = ClusterProcess(found.pid, found.start_ticks - 100)
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
