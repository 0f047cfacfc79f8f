from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from devcluster_helpers import ROOT
from helpers import slurm_required

import slurm_robust
from slurm_robust.devcluster.cluster import DevCluster, DevClusterError

pytestmark = pytest.mark.slurm


def ordinary_python(folder: Path) -> list[str]:
    """A Python that `nobody` may run, with this package and what it imports; empty if this machine has none.

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
