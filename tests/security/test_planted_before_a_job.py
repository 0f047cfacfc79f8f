"""The whole of it: a stranger prepares everything that can be guessed of a job, before the job begins."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import wait_until
from other_user import ATTACKER, acting_as, as_user, needs_root

import slurm_robust
from slurm_robust.devcluster.cluster import DevCluster, Spec

pytestmark = [pytest.mark.slurm, needs_root]
USER = "nobody"


@pytest.fixture
def cluster() -> Iterator[DevCluster]:
    """One node, in a folder with a short path that everybody may pass."""
    with tempfile.TemporaryDirectory(prefix="sec-") as name:
        Path(name).chmod(0o755)
        up = DevCluster.up(Spec(nodes=1, directory=Path(name) / "c"))
        try:
            yield up
        finally:
            up.down()


@pytest.fixture
def python(cluster: DevCluster) -> tuple[str, dict[str, str]]:
    """A Python that the user may run, and the variables with which it has this package."""
    package = cluster.directory.parent / "package"
    ignored = shutil.ignore_patterns("*.pyc")
    shutil.copytree(Path(slurm_robust.__file__).parent, package / "slurm_robust", ignore=ignored)
    path = f"{package}:{sysconfig.get_path('purelib')}:{sysconfig.get_path('platlib')}"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for word in (sys.executable, f"/usr/bin/{version}", f"/usr/local/bin/{version}"):
        env = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
        argv = ["runuser", "-u", USER, "--", word, "-c", "import slurm_robust.supervise.supervisor"]
        if subprocess.run(argv, env={**os.environ, **env}, capture_output=True, check=False).returncode == 0:
            return word, env
    pytest.skip(f"{USER} may run no Python with our dependencies")


@pytest.mark.variant
@pytest.mark.parametrize("mode", [0o1777, 0o777], ids=["sticky", "open"])
def test_a_supervised_job_is_held_by_nothing_that_was_planted(
    cluster: DevCluster, python: tuple[str, dict[str, str]], mode: int
) -> None:
    """It runs and is supervised, in a folder of its own; the stranger's links lead nowhere."""
    work, victim = cluster.layout.work / "shared", pwd.getpwnam(USER)
    work.mkdir()
    work.chmod(mode)
    bashrc = cluster.directory.parent / "bashrc"
    bashrc.write_text("# mine\n")
    os.chown(bashrc, victim.pw_uid, victim.pw_gid)
    script = (
        f'#!/bin/sh\n{python[0]} -c "from slurm_robust.cli.entry import main; main()" run --robust=act -n1 '
        "sh -c 'echo ran; sleep 4; exit 5'\n"
    )
    argv = ["sbatch", "--parsable", "--hold", f"--output={work}/%j.out"]
    env = {**cluster.env, **python[1]}
    job = cluster.run(argv, user=USER, env=env, input=script, cwd=work).stdout.strip()
    folder = work / f"slurm-robust-{job}"

    def plant() -> None:
        folder.mkdir()
        for name in ("story.jsonl", "calls"):
            (folder / name).symlink_to(bashrc)
        (folder / "lineage.json").write_text('{"tally":{"since_s":9e9,"count":99}}')
        folder.chmod(0o777)
        Path(f"/tmp/srobust-{victim.pw_uid}").mkdir()

    shutil.rmtree(f"/tmp/srobust-{victim.pw_uid}", ignore_errors=True)
    as_user(ATTACKER, plant)
    name = cluster.run(["scontrol", "show", "config"]).stdout.partition("ClusterName")[2].split("=")[1].split()[0]
    with acting_as(ATTACKER):
        squatted = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        squatted.bind(f"\0srobust-{victim.pw_uid}-{name}-{job}.0")
        squatted.listen(0)
    try:
        cluster.run(["scontrol", "release", job])
        state = ["scontrol", "show", "job", job]
        wait_until(lambda: "JobState=FAILED" in cluster.run(state).stdout, 60, "the job's end", poll_s=0.5)
        output = (work / f"{job}.out").read_text()
        assert "ran" in output
        assert "another srobust run supervises this job" not in output
        assert output.count(f"{folder}.1 is used instead") == 1, output
        assert bashrc.read_text() == "# mine\n"
        own = Path(f"{folder}.1")
        assert own.stat().st_uid == victim.pw_uid
        kinds = [json.loads(line)["kind"] for line in (own / "story.jsonl").read_text().splitlines()]
        assert "suspected" in kinds, output
    finally:
        squatted.close()
        for left in (f"/tmp/srobust-{victim.pw_uid}", f"/tmp/srobust-{victim.pw_uid}.1"):
            shutil.rmtree(left, ignore_errors=True)
