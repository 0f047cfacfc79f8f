"""Who is called like Slurm's own is not believed, and a job's own mounts are not the node's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import wait_until

from slurm_robust.nodecheck.checks.gpu import gpu_in_use
from slurm_robust.nodecheck.checks.host import filesystem
from slurm_robust.nodecheck.engine.context import Context
from slurm_robust.nodecheck.sources import processes

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
USER = 54321
TITLE = "slurmstepd: [99999.batch]"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user may enter."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        Path(made).chmod(0o755)
        yield Path(made)


def sleeper(folder: Path, name: str, mode: int = 0o755) -> str:
    """A program of this name that sleeps."""
    shutil.copy(shutil.which("sleep") or "", folder / name)
    (folder / name).chmod(mode)
    return str(folder / name)


@pytest.mark.parametrize("mode", [0o755, 0o711])
def test_a_user_s_process_is_no_slurmstepd(folder: Path, mode: int) -> None:
    """Neither by its title, nor where /proc/PID is root's because the program may not be read; root's own is one."""
    program = sleeper(folder, "slurmstepd", mode)
    theirs = subprocess.Popen([TITLE, "60"], executable=program, user=USER, group=USER, extra_groups=[])
    ours = subprocess.Popen([TITLE.replace("99999", "77777"), "60"], executable=program)
    try:
        for process in (theirs, ours):
            title = Path(f"/proc/{process.pid}/cmdline")
            wait_until(lambda title=title: b"slurmstepd: [" in title.read_bytes(), 5, "it runs")
        found = processes.job_managers(Context("n1")).values()
        assert 77777 in found
        assert 99999 not in found
        found = gpu_in_use._live_jobs(Context("n1"))
        assert 77777 in found
        assert 99999 not in found
    finally:
        for process in (theirs, ours):
            process.kill()
            process.wait()


_LOOK = """
from slurm_robust.nodecheck.engine.context import Context
from slurm_robust.nodecheck.sources import processes
print(processes.has_own_mounts(Context("n1", "epilog")))
"""


@pytest.mark.parametrize("own", [True, False])
def test_a_job_s_own_mounts_are_told_from_slurmd_s(folder: Path, own: bool) -> None:
    """A user's `slurmd` in a name space of his own changes nothing."""
    unshared = ["unshare", "-m"]
    if subprocess.run([*unshared, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no mount name space of one's own here")
    program = sleeper(folder, "slurmd")
    real = subprocess.Popen([program, "60"])
    theirs = subprocess.Popen([*unshared, "setpriv", "--reuid", str(USER), "--clear-groups", program, "60"])
    try:
        wait_until(lambda: all(Path(f"/proc/{p.pid}/comm").read_text() == "slurmd\n" for p in (real, theirs)), 5, "run")
        argv = [*(unshared if own else []), sys.executable, "-c", _LOOK]
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        done = subprocess.run(argv, capture_output=True, text=True, check=True, env=env)
        assert done.stdout == f"{own}\n"
    finally:
        for process in (real, theirs):
            process.kill()
            process.wait()


@pytest.mark.parametrize("private", [True, False])
def test_a_full_tmp_of_a_job_s_own_fails_no_node(private: bool) -> None:
    """Where Slurm runs prolog and epilog among a job's mounts, what fills its own /tmp is no fault of the node."""
    place = {"path": "/tmp", "free_mb": 0, "min_free_mb": 64, "total_mb": 9, "total_inodes": 0, "write_errno": 28}
    facts = {"places": [{**place, "jobs": 0, "private": private}]}
    finding = filesystem.check.judge(facts, filesystem.check.settings({}))
    assert (finding.status.value, finding.reason) == ("warn" if private else "fail", "no_space")
