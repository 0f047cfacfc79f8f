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
    """Three nodes that load the plugin."""
    conf = plugin.parent / "plugstack.conf"
    conf.write_text(line(plugin) + "\n")
    cluster = DevCluster.up(Spec(nodes=3, slurm_conf_extra=f"PlugStackConfig={conf}"))
    yield cluster
    cluster.down()
