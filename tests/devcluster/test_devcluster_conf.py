from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.config import site as config
from slurm_robust.devcluster import conf, files
from slurm_robust.devcluster.conf import Settings
from slurm_robust.devcluster.spec import ClusterPaths, DevClusterError, Spec

SETTINGS = Settings("dev1", "root", "munge", "cgroup", 12000, (22, 5))
LAYOUT = ClusterPaths(Path("/x"))


def test_slurm_conf_names_every_node_and_port() -> None:
    """N nodes have N ports, right after slurmctld's own."""
    text = conf.slurm_conf(Spec(nodes=6), SETTINGS, LAYOUT)
    node = next(line for line in text.splitlines() if line.startswith("NodeName="))
    assert "NodeName=n[1-6] " in node
    assert "Port=[12001-12006]" in node
    assert "Gres=gpu:fake:8" in node
    assert "AuthInfo=socket=/x/munge/socket" in text.splitlines()
    assert "KillWait=30" in text.splitlines()


def test_one_node_without_gpus() -> None:
    """The smallest cluster has no bracket lists and no GRES."""
    text = conf.slurm_conf(Spec(nodes=1, gpus_per_node=0), SETTINGS, LAYOUT)
    assert "NodeName=n1 " in text
    assert "Port=12001 " in text
    assert "gpu" not in text
    assert conf.gres_conf(Spec(nodes=1, gpus_per_node=0), LAYOUT) == ""


def test_extra_lines_replace_own_ones_whatever_their_case() -> None:
    """A key that stands twice would be taken from either place: ours goes."""
    text = conf.slurm_conf(Spec(slurm_conf_extra="killwait=3\nPartitionName=other Nodes=n1"), SETTINGS, LAYOUT)
    assert "KillWait=30" not in text
    assert "killwait=3" in text.splitlines()
    assert "PartitionName=main" not in text


def test_older_slurm_is_not_asked_for_what_it_lacks() -> None:
    """Before 22.05 DeferBatch is left out; from 24.05 a cluster without cgroups says so."""
    old = dataclasses.replace(SETTINGS, version=(21, 8))
    assert "PrologFlags=Alloc" in conf.slurm_conf(Spec(), old, LAYOUT).splitlines()
    assert "PrologFlags=Alloc,DeferBatch" in conf.slurm_conf(Spec(), SETTINGS, LAYOUT).splitlines()
    new = dataclasses.replace(SETTINGS, version=(24, 11), proctrack="linuxproc")
    assert conf.cgroup_conf(new, LAYOUT) == "CgroupPlugin=disabled\n"
    assert conf.cgroup_conf(dataclasses.replace(SETTINGS, proctrack="linuxproc"), LAYOUT) == ""


def test_without_prolog_slurm_runs_none() -> None:
    """prolog=False leaves Slurm without prolog and epilog, unless a slow epilog is asked for."""
    assert "\nProlog=" not in conf.slurm_conf(Spec(prolog=False), SETTINGS, LAYOUT)
    slow = conf.slurm_conf(Spec(prolog=False, epilog_sleep_s=15), SETTINGS, LAYOUT)
    assert "Epilog=/x/etc/epilog" in slow.splitlines()
    assert "PrologEpilogTimeout=75" in slow.splitlines()


def test_robust_yaml_is_a_valid_configuration() -> None:
    """What is written can be read by the project's own loader, with the caller's changes merged at every depth."""
    spec = Spec(
        mode="observe", standby=2, robust_yaml={"daemon": {"http": {"enabled": False}}, "seat": {"max_active": 3}}
    )
    read = config.parse(conf.robust_yaml(spec, SETTINGS, LAYOUT))
    assert read.mode.value == "observe"
    assert read.standby.size == 2
    assert read.daemon.http.enabled is False
    assert read.daemon.http.port == SETTINGS.http_port
    assert read.seat.max_active == 3
    assert read.nodecheck.kmsg == "/x/kmsg/%n"
    assert read.slurm.conf == "/x/etc/slurm.conf"


TREES = st.recursive(
    st.integers(), lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3), max_leaves=12
)


@given(st.dictionaries(st.sampled_from("abc"), TREES), st.dictionaries(st.sampled_from("abc"), TREES))
def test_merge_keeps_every_leaf_of_the_upper_one(base: dict[str, object], over: dict[str, object]) -> None:
    """Every leaf of `over` stands in the result; what only `base` has stays; neither is changed."""
    before = yaml.safe_dump([base, over])
    result = conf.merged(base, over)

    def check(got: object, wanted: object) -> None:
        if isinstance(wanted, dict):
            assert isinstance(got, dict)
            for key, value in wanted.items():
                check(got[key], value)
        else:
            assert got == wanted

    check(result, over)
    assert set(result) == set(base) | set(over)
    assert yaml.safe_dump([base, over]) == before


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        (Spec(nodes=0), "nodes"),
        (Spec(nodes=65), "nodes"),
        (Spec(gpus_per_node=-1), "gpus_per_node"),
        (Spec(nodes=2, standby=2), "standby"),
        (Spec(mode="maybe"), "mode"),
        (Spec(memory_mb=0), "memory_mb"),
        (Spec(directory=Path("/tmp/a b")), "directory"),
        (Spec(directory=Path("/tmp/%n")), "directory"),
    ],
)
def test_a_spec_that_cannot_work_is_refused(spec: Spec, word: str) -> None:
    """Each error names the field."""
    with pytest.raises(DevClusterError, match=word):
        spec.check()


def test_a_folder_that_is_not_empty_is_left_alone(tmp_path: Path) -> None:
    """Nothing is written into, and nothing removed from, a folder with other things in it."""
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(DevClusterError, match=r"not empty|longer"):
        files.make_directory(Spec(directory=tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_kernel_log_has_the_shape_of_dev_kmsg(tmp_path: Path) -> None:
    """Records are `priority,number,microseconds,-;text`; whole records are taken as they are."""
    log = tmp_path / "n1"
    files.append_kmsg(log, "first\nsecond", priority=6)
    files.append_kmsg(log, "3,7,123,-;whole")
    first, second, third = log.read_text().splitlines()
    assert first.startswith("6,0,")
    assert first.endswith(",-;first")
    assert second.startswith("6,1,")
    assert third == "3,7,123,-;whole"
