"""What robust.yaml names beside what is there: files, folders, partitions, modes, and who can read the file itself."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from helpers import wait_until

from slurm_robust.config.site import Config, NodecheckConfig, StandbyConfig, parse
from slurm_robust.core.model import Mode
from slurm_robust.devcluster.cluster import DevCluster, Spec
from slurm_robust.doctor import settings, site
from slurm_robust.doctor.advice import Advice, Severity

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="files of others can only be made by root")


def wrong(found: list[Advice]) -> list[str]:
    """What is wrong is about these."""
    return [a.about for a in found if a.level is Severity.WRONG]


def machine(root: Path, config: Config | None = None, used: Path | None = None, node: str = "n1") -> list[Advice]:
    """A machine with a kernel log; `nodecheck.cache_dir` is not made yet."""
    (root / "dev").mkdir(exist_ok=True)
    (root / "dev/kmsg").touch()
    return site.check(config or Config(), used, node, root)


def test_all_is_well(tmp_path: Path) -> None:
    """A node as it is installed."""
    assert [a.level for a in machine(tmp_path)] == [Severity.OK] * 2


@root_only
def test_a_robust_yaml_that_users_cannot_read() -> None:
    """By its own mode, or by that of a folder on the way; each with the command that opens it."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        folder = Path(made)
        folder.chmod(0o755)
        file = folder / "robust.yaml"
        file.write_text("mode: observe\n")
        file.chmod(0o644)
        assert site.readable(file).level is Severity.OK
        file.chmod(0o600)
        assert (site.readable(file).level, site.readable(file).fix) == (Severity.WRONG, f"chmod 644 {file}")
        file.chmod(0o644)
        folder.chmod(0o700)
        assert (site.readable(file).level, site.readable(file).fix) == (Severity.WRONG, f"chmod o+x {folder}")
        assert site.readable(folder / "gone.yaml").level is Severity.WRONG


def test_a_kernel_log_that_is_missing(tmp_path: Path) -> None:
    """Then no XID is seen; it is judged on nodes alone."""
    assert wrong(machine(tmp_path, Config(nodecheck=NodecheckConfig(kmsg="/var/log/kern.log")))) == ["nodecheck.kmsg"]
    each = Config(nodecheck=NodecheckConfig(kmsg="/logs/%n"))
    assert wrong(machine(tmp_path, each)) == ["nodecheck.kmsg"]
    assert wrong(machine(tmp_path, each, node="")) == []
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/n1").touch()
    assert wrong(machine(tmp_path, each)) == []


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775])
def test_a_state_folder_that_others_may_write(tmp_path: Path, mode: int) -> None:
    """Nothing in it is believed, so that no verdict is ever cached."""
    folder = tmp_path / "run/slurm_robust"
    folder.mkdir(parents=True)
    folder.chmod(mode)
    (found,) = [a for a in machine(tmp_path) if a.about == "nodecheck.cache_dir"]
    assert (found.level, found.fix) == (
        Severity.WRONG,
        "chown root:root /run/slurm_robust; chmod 755 /run/slurm_robust",
    )
    folder.chmod(0o755)
    assert wrong(machine(tmp_path)) == []


def test_scripts_with_another_mode(tmp_path: Path) -> None:
    """`SROBUST_CONFIG` of their own settings names a file that says something else, or none that can be read."""
    (tmp_path / "etc/slurm_robust").mkdir(parents=True)
    (tmp_path / "etc/slurm_robust/env").write_text("SROBUST_CONFIG=/opt/old.yaml\n")
    used = tmp_path / "robust.yaml"
    used.write_text("")
    assert "/etc/slurm_robust/env" in wrong(machine(tmp_path, used=used))
    (tmp_path / "opt").mkdir()
    (tmp_path / "opt/old.yaml").write_text("mode: act\n")
    (found,) = [a for a in machine(tmp_path, used=used) if a.about == "/etc/slurm_robust/env"]
    assert "with mode act" in found.sentence
    assert "says observe" in found.sentence
    assert "/etc/slurm_robust/env" not in wrong(machine(tmp_path, Config(mode=Mode.ACT), used))


def test_a_daemon_with_another_mode() -> None:
    """robust.yaml was changed after its start; one that is gone is no daemon with a mode."""
    now_s = time.time()
    assert wrong(site.daemon(Config(mode=Mode.ACT), {"mode": "observe", "at_s": now_s}, now_s)) == ["mode"]
    assert site.daemon(Config(), {"mode": "observe", "at_s": now_s}, now_s) == []
    assert site.daemon(Config(mode=Mode.ACT), {"mode": "observe", "at_s": now_s - 60}, now_s) == []
    assert site.daemon(Config(), {}, now_s) == []


def test_a_standby_partition_that_does_not_exist() -> None:
    """The example's `gpu`, on a site that calls it otherwise."""
    config = Config(standby=StandbyConfig(size=2, partitions=("gpu", "batch")))
    (found,) = site.partitions(config, {"batch", "debug"})
    assert found.level is Severity.WRONG
    assert "no partition gpu" in found.sentence
    assert "there are: batch, debug" in found.fix
    (unused,) = site.partitions(Config(standby=StandbyConfig(partitions=("gpu",))), {"batch"})
    assert unused.level is Severity.ADVICE


def test_accounting_of_gpus_needs_a_restart() -> None:
    """A reconfigure does not do it."""
    said = {"AccountingStorageType": "accounting_storage/slurmdbd", "GresTypes": "gpu"}
    (found,) = [a for a in settings.judge(said, Config()) if a.about == "AccountingStorageTRES"]
    assert found.fix == "AccountingStorageTRES=gres/gpu"
    assert "systemctl restart slurmctld" in found.sentence


@pytest.mark.slurm
@pytest.mark.timeout(90)
def test_a_real_site_with_four_mistakes(devcluster_factory: Callable[[Spec], DevCluster]) -> None:
    """Mode changed under the daemon, no such partition, a file for root alone, a plugin that Slurm does not load."""
    cluster = devcluster_factory(Spec(nodes=2, gpus_per_node=0, daemon=True))
    path = cluster.layout.robust_yaml
    raw = yaml.safe_load(path.read_text())
    wait_until(Path(raw["daemon"]["state_dir"], "state.json").exists, 60, "the daemon's first snapshot")
    raw |= {"mode": "observe", "standby": {"size": 1, "partitions": ["gpus"]}}
    path.write_text(yaml.safe_dump(raw))
    path.chmod(0o600)
    assert parse(path.read_text()).mode is Mode.OBSERVE
    plugstack = cluster.layout.slurm_conf.parent / "plugstack.conf"
    plugstack.write_text("required /opt/gone/spank_robust.so mode=act\n")
    done = cluster.run([sys.executable, "-m", "slurm_robust.cli.main", "doctor", "--json"], check=False)
    found = [a for a in json.loads(done.stdout)["findings"] if a["level"] == "wrong"]
    abouts = [a["about"] for a in found]
    assert {"mode", "standby.partitions", str(path), str(plugstack)} <= set(abouts), found
    said = [a["sentence"] for a in found if a["about"] == str(plugstack)]
    assert len(said) == 3
    for words in ("mode=act", "is required", "is not on this machine"):
        assert any(words in sentence for sentence in said), said
