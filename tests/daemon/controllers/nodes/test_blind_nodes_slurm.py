"""A node whose health check cannot see the GPUs, on a real Slurm: its own script, the daemon, `srobust status`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_gpus import compile_fake
from helpers import wait_until

from slurm_robust.config.site import SlurmConfig
from slurm_robust.devcluster.cluster import DevCluster, Spec
from slurm_robust.marks import blind_marker
from slurm_robust.slurm.commands import CommandClient

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(120), pytest.mark.variant]

HEALTH_CHECK = """
import sys
from slurm_robust.nodecheck.nvml import library
from slurm_robust.nodecheck.stages import stage_run

def binding():
    raise ImportError("no pynvml")

if sys.argv[2] == "blind":
    library.binding = binding
sys.exit(stage_run.main("periodic", sys.argv[1]))
"""


def test_from_the_health_check_to_status(
    devcluster_factory: Callable[[Spec], DevCluster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark appears in observe mode, is told, leaves a person's text alone, and goes once the GPUs are seen."""
    fake = compile_fake(tmp_path)
    settings = {"nodecheck": {"nvml_library": str(fake), "cache_dir": str(tmp_path / "run")}}
    cluster = devcluster_factory(Spec(nodes=2, gpus_per_node=0, prolog=False, daemon=True, robust_yaml=settings))
    client = CommandClient(SlurmConfig(conf=str(cluster.layout.slurm_conf)))
    site = cluster.layout.robust_yaml
    site.write_text(site.read_text().replace("mode: act", "mode: observe"))

    def look(sight: str) -> str:
        env = {**os.environ, **cluster.env, "SLURMD_NODENAME": "n1"}
        words = [sys.executable, "-c", HEALTH_CHECK, str(site), sight]
        done = subprocess.run(words, env=env, check=False, capture_output=True, text=True, timeout=60)
        return done.stderr

    def status() -> str:
        return cluster.run([sys.executable, "-m", "slurm_robust.cli.main", "status"], check=False).stdout

    client.set_node_extra("n1", "rack 7")
    said = look("blind")
    extra = next(n.extra for n in client.nodes() if n.name == "n1")
    assert extra.startswith("rack 7 [[srobust-blind v=1"), said
    wait_until(lambda: "1 node cannot check its GPUs: n1:" in " ".join(status().split()), 20, status())
    assert "nvidia-ml-py is not installed" in " ".join(status().split())
    look("seeing")
    assert [n.extra for n in client.nodes() if n.name == "n1"] == ["rack 7"]
    wait_until(lambda: "cannot check" not in status(), 20, "it is over")
    assert not any(blind_marker.marked(n.extra) for n in client.nodes())
