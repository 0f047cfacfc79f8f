"""`srobust stacks` as root, on a real Slurm whose SlurmUser is not root: it becomes the owner, or says what to type."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import wait_until
from other_user import needs_root

import slurm_robust
from slurm_robust.core.model import JobRef
from slurm_robust.devcluster.cluster import DevCluster, Spec
from slurm_robust.slurm.client import Job
from slurm_robust.supervise.reported.watch_step import as_account
from slurm_robust.supervise.watch.live_stacks import LiveStacksError, account_for

PYTHON = "/usr/bin/python3"
"""That anybody may run; this test's own may lie in root's home."""


def job_of(user: str) -> Job:
    """A job of this user."""
    return Job(JobRef(7), "x", user, "p", "RUNNING", nodes=("n1",))


@needs_root
def test_whom_root_becomes() -> None:
    """The owner, where root is not SlurmUser; itself, where Slurm takes its step or does not say."""
    elsewhere = {"SlurmUser": "slurm(64030)"}
    account = account_for(job_of("nobody"), elsewhere)
    assert account is not None
    assert account.pw_name == "nobody"
    for user, settings in (("root", elsewhere), ("nobody", {"SlurmUser": "root(0)"}), ("nobody", {})):
        assert account_for(job_of(user), settings) is None
    with pytest.raises(LiveStacksError, match=r"only ann, its owner, and slurm.* does not know ann"):
        account_for(job_of("ann"), elsewhere)


def test_nothing_of_roots_environment_goes_along() -> None:
    """Who owns a process may read what is in it."""
    account = pwd.getpwuid(os.geteuid())
    root = {"PATH": "/bin", "SLURM_CONF": "/c", "AWS_SECRET_KEY": "x", "SLURM_EXCLUSIVE": "1", "HOME": "/root/x"}
    made = as_account(account, root)
    assert made["env"].keys() == {"PATH", "SLURM_CONF", "HOME", "USER", "LOGNAME", "SROBUST_WATCH"}
    assert made["env"]["HOME"] == account.pw_dir
    assert (made["user"], made["group"], made["cwd"]) == (account.pw_uid, account.pw_gid, "/")


@pytest.fixture
def cluster_of_slurm(monkeypatch: pytest.MonkeyPatch) -> Iterator[DevCluster]:
    """A cluster whose SlurmUser is the account `slurm`, as at most sites."""
    prepare = DevCluster._prepare

    def prepared(self: DevCluster, spec: Spec, settings: Any) -> None:
        prepare(self, spec, settings)
        conf = self.layout.slurm_conf
        conf.write_text(conf.read_text().replace("SlurmUser=root", "SlurmUser=slurm"))
        for place in (Path(f"{self.layout.state}/slurmctld"), self.layout.log, self.layout.run):
            Path(place).mkdir(exist_ok=True)
            shutil.chown(place, "slurm")

    monkeypatch.setattr(DevCluster, "_prepare", prepared)
    with tempfile.TemporaryDirectory(prefix="dc-test-") as name:
        Path(name).chmod(0o755)  # pytest's own folders are closed to others
        up = DevCluster.up(Spec(nodes=2, directory=Path(name) / "c", prolog=False, gpus_per_node=0))
        yield up
        up.down()


def need_nobody() -> None:
    """Skip where `nobody` cannot run what an agent runs, or there is no account for Slurm."""
    try:
        pwd.getpwnam("slurm")
    except KeyError:
        pytest.skip("there is no account slurm")
    root = str(Path(slurm_robust.__file__).parents[1])
    code = "import sys; sys.path.insert(0, sys.argv[1]); import slurm_robust.supervise.agent.main"
    words = [PYTHON, "-S", "-E", "-c", code, root]
    who: dict[str, Any] = {"user": "nobody", "group": "nogroup", "extra_groups": []}
    if not Path(PYTHON).exists() or subprocess.run(words, check=False, cwd="/", capture_output=True, **who).returncode:
        pytest.skip("nobody can run neither that Python nor this code")


@needs_root
@pytest.mark.slurm
@pytest.mark.timeout(120)
def test_root_sees_the_stacks_of_another_users_job(cluster_of_slurm: DevCluster) -> None:
    """Slurm refuses root's own step there; the owner's is taken, and its ranks are seen."""
    need_nobody()
    cluster = cluster_of_slurm
    env = {**os.environ, **cluster.env}
    program = cluster.layout.work / "ranks.py"
    program.write_text("import time\ndef stands():\n    time.sleep(600)\nstands()\n")
    words = ["sbatch", "--parsable", "-N2", "-n2", "-o", "/dev/null", "-D", "/", "--wrap", f"srun {PYTHON} {program}"]
    who: dict[str, Any] = {"user": "nobody", "group": "nogroup", "extra_groups": []}
    job = subprocess.run(words, env=env, check=True, capture_output=True, text=True, **who).stdout.strip()
    wait_until(lambda: "R" in cluster.run(["squeue", "-h", "-o", "%t", "-j", job]).stdout, 30, "the job's start")
    start = f"import sys; sys.executable = {PYTHON!r}; from slurm_robust.cli.main import cli; cli()"
    seen = ""

    def stacks() -> bool:
        nonlocal seen
        done = subprocess.run(
            [sys.executable, "-c", start, "stacks", job], env=env, check=False, capture_output=True, text=True
        )
        seen = done.stdout + done.stderr
        return done.returncode == 0 and "stands" in seen

    wait_until(stacks, 40, seen)
    assert "{0-1}" in seen
    cluster.run(["scancel", job])
