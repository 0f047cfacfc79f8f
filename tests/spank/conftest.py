"""The plugin, built once for all tests of it, and a devcluster that loads it."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import slurm_required

from slurm_robust.devcluster.cluster import DevCluster, Spec

SPANK = Path(__file__).resolve().parents[2] / "spank"


def make(build: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Type `make WORDS` in spank/, with everything that it makes in `build`."""
    argv = ["make", "-s", "-C", str(SPANK), f"BUILD={build}", *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)


def need_compiler() -> None:
    """Skip, or fail where tests must not be skipped, without a compiler or Slurm's headers."""
    header = Path("/usr/include/slurm/spank.h")
    if shutil.which("make") and shutil.which("cc") and header.exists():
        return
    message = "nothing to build with: apt-get install gcc make libc6-dev libslurm-dev (scripts/setup --dev does)"
    if slurm_required():
        pytest.fail(message, pytrace=False)
    pytest.skip(message)


@pytest.fixture(scope="session")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The plugin as `make` builds it here."""
    need_compiler()
    build = tmp_path_factory.mktemp("spank")
    done = make(build)
    assert done.returncode == 0, done.stderr
    return build / "spank_robust.so"


def line(plugin: Path, *arguments: str) -> str:
    """A line of plugstack.conf for it, with the srobust of these tests."""
    command = shutil.which("srobust")
    assert command, "srobust is not on PATH: source the virtual environment"
    return " ".join(["optional", str(plugin), f"command={command}", f"python={SPANK}/python", *arguments])


@pytest.fixture(scope="module")
def spank_cluster(plugin: Path) -> Iterator[DevCluster]:
    """Three nodes that load the plugin."""
    with tempfile.TemporaryDirectory(prefix="srobust-spank-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        shutil.copy(plugin, folder)
        conf = folder / "plugstack.conf"
        conf.write_text(line(folder / plugin.name) + "\n")
        cluster = DevCluster.up(Spec(nodes=3, slurm_conf_extra=f"PlugStackConfig={conf}"))
        yield cluster
        cluster.down()
