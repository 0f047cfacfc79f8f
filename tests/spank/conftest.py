"""The plugin, built once for all tests of it, and a devcluster that loads it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from spank_build import build, line

from slurm_robust.devcluster.cluster import DevCluster, Spec


@pytest.fixture(scope="session")
def plugin() -> Iterator[Path]:
    """The plugin as `make` builds it here, where every user may read it."""
    with tempfile.TemporaryDirectory(prefix="srobust-spank-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield build(folder)


@pytest.fixture(scope="module")
def spank_cluster(plugin: Path) -> Iterator[DevCluster]:
    """Three nodes that load the plugin; prolog and epilog write down what they are told of a job's choice."""
    conf = plugin.parent / "plugstack.conf"
    conf.write_text(line(plugin) + "\n")
    extra = [f"PlugStackConfig={conf}"]
    for stage in ("Prolog", "Epilog"):
        script = plugin.parent / stage
        script.write_text(f"#!/bin/sh\n/usr/bin/env | /bin/grep ^SPANK_ >{script}.$SLURM_JOB_ID.told\nexit 0\n")
        script.chmod(0o755)
        extra.append(f"{stage}={script}")
    # No daemon runs: what asks for one soon helps itself. No story is about tests of the nodes.
    quick = {"supervise": {"answer_timeout_s": 2.0}, "ladder": {"tests": []}}
    cluster = DevCluster.up(Spec(nodes=3, slurm_conf_extra="\n".join(extra), robust_yaml=quick))
    yield cluster
    cluster.down()
