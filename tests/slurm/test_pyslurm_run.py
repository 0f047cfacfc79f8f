"""`srobust run` in a real job of a site whose pyslurm does not work."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_robust.devcluster import machine
from slurm_robust.devcluster.cluster import DevCluster

pytestmark = pytest.mark.slurm


def test_a_job_is_supervised_though_pyslurm_fails(cluster: DevCluster, backend: str, tmp_path: Path) -> None:
    """It starts, is watched and ends as always; its output has a sentence for each thing that does not work."""
    if backend != "commands":
        pytest.skip("the same for each back end: it brings its own pyslurm")
    # It cannot read jobs; reading the cluster's name raises AttributeError, as the release on the package index did.
    source = (Path(__file__).parent / "pyslurm_shapes" / "objects_25_11.py").read_text()
    major, minor = machine.slurm_version()
    source = source.replace('__version__ = "25.11.2"', f'__version__ = "{major}.{minor}.0"')
    (tmp_path / "pyslurm.py").write_text(f"{source}\ndel _Config.cluster_name\ndel Job.load\ndel Jobs.load\n")
    (tmp_path / "calls").touch()
    (tmp_path / "robust.yaml").write_text("slurm: {backend: pyslurm}\nmode: observe\n")
    tmp_path.chmod(0o755)
    folder = tmp_path / "story"
    # A step that ends before its supervisor has loaded is not supervised.
    memory = f"{folder}/*/lineage.json"
    until_watched = f"timeout 25 sh -c 'until grep -qs . {memory}; do sleep 0.1; done'; echo ran"
    run = ["srobust", "run", f"--robust-config={tmp_path}/robust.yaml", f"--robust-folder={folder}", "sh", "-c"]
    run.append(until_watched)
    env = {"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}", "STUB_CALLS": str(tmp_path / "calls")}
    done = cluster.run(["salloc", "-Q", "-N1", *run], env=env)
    assert done.stdout.split() == ["ran"]
    lacks, fails = (line for line in done.stderr.splitlines() if "pyslurm" in line)
    assert "has no Job.load, Jobs.load: Slurm's commands are used for what needs it" in lacks
    assert "failed to read the cluster's name (AttributeError" in fails
    assert "supervised" not in done.stderr
    assert "running without it" not in done.stderr
    assert folder.is_dir(), "no supervisor has written its story"
