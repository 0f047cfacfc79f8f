"""The daemon's own jobs on a real Slurm whose accounting enforces associations, in a partition of one account."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from accounting_tools import need_accounting
from daemon_scene import Scene
from helpers import wait_until

from slurm_robust.devcluster.cluster import DevCluster, Spec

pytestmark = [pytest.mark.slurm, pytest.mark.variant]

PARTITION = "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE AllowAccounts=train"
ENFORCED = f"AccountingStorageEnforce=associations,limits,qos\n{PARTITION}"


@pytest.fixture
def enforced() -> Iterator[Scene]:
    """A cluster whose only partition takes jobs of the account `train`, which root does not have."""
    need_accounting()
    with tempfile.TemporaryDirectory(prefix="dc-test-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        spec = Spec(nodes=2, directory=folder / "c", accounting=True, prolog=False, slurm_conf_extra=ENFORCED)
        cluster = DevCluster.up(spec)
        try:
            cluster.run(["sacctmgr", "-i", "add", "account", "train"])
            scene = Scene(cluster, folder / "state")
            yield scene
            scene.stop()
        finally:
            cluster.down()


def own_findings(scene: Scene) -> list[dict[str, str]]:
    """What doctor says of the daemon's own jobs."""
    path = scene.configure(daemon={"state_dir": str(scene.state_dir)})
    said = json.loads(scene.cluster.run(["srobust", "doctor", "--json", "--config", str(path)], check=False).stdout)
    return [finding for finding in said["findings"] if finding["about"] == "own_jobs"]


def test_doctors_two_lines_are_what_is_missing(enforced: Scene) -> None:
    """Slurm takes the check of a standby node, and never starts it; with the lines of doctor it runs."""
    scene, pool = enforced, {"size": 1}
    scene.start(standby=pool)
    refused = lambda: scene.log.read_text().count("WARNING own_jobs.refused")  # noqa: E731
    wait_until(refused, 40, f"it is told\n{scene.tail()}")
    assert scene.log.read_text().count("action.standby_check:") <= 2
    (found,) = own_findings(scene)
    assert found["level"] == "wrong"
    assert found["fix"] == "sacctmgr add user root account=train; robust.yaml: own_jobs: {account: train}"
    scene.cluster.run(["sacctmgr", "-i", "add", "user", "root", "account=train"])
    scene.start(standby=pool, own_jobs={"account": "train"})
    wait_until(lambda: "standby.checked" in scene.log.read_text(), 60, f"its member is checked\n{scene.tail()}")
