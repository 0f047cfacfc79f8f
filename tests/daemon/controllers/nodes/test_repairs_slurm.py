"""Repairs on a real Slurm, with its reboot, our prolog and the real full check."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from daemon_scene import Scene
from helpers import wait_until

from slurm_robust.daemon.store.repair_ledger import RepairLedger
from slurm_robust.devcluster.cluster import DevCluster, Spec
from slurm_robust.policy.cluster.repair import RepairTry

pytestmark = pytest.mark.slurm

LOST = "NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
MEMORY = "NVRM: Xid (PCI:0000:9b:00): 95, pid=1, name=x, Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No"
REPAIR = {"enabled": True, "wait_s": 1, "timeout_s": 90}


@pytest.fixture(scope="module")
def cluster(devcluster_factory: Callable[[Spec], DevCluster], tmp_path_factory: pytest.TempPathFactory) -> DevCluster:
    """Two nodes with our prolog, whose RebootProgram notes which node it was called on."""
    folder = tmp_path_factory.mktemp("reboot")
    program = folder / "reboot"
    program.write_text(f'#!/bin/sh\necho "$(basename "$PWD")" >> {folder}/rebooted\n')
    program.chmod(0o755)
    settings = f"RebootProgram={program}\nResumeTimeout=60"
    return devcluster_factory(Spec(nodes=2, gpus_per_node=1, kill_wait_s=2, slurm_conf_extra=settings))


@pytest.fixture
def stage(cluster: DevCluster, tmp_path: Path) -> Iterator[Scene]:
    """The cluster with a daemon's folder; afterwards every node is well again."""
    made = Scene(cluster, tmp_path / "state")
    yield made
    for node in cluster.node_names:
        new_kernel_log(cluster, node)
    made.clean_up()


def rebooted(cluster: DevCluster) -> list[str]:
    """The nodes on which RebootProgram was called."""
    program = next(v for k, v in (line.split("=", 1) for line in conf(cluster)) if k == "RebootProgram")
    path = Path(program).parent / "rebooted"
    return path.read_text().split() if path.exists() else []


def conf(cluster: DevCluster) -> list[str]:
    """The lines of slurm.conf."""
    return [line for line in cluster.layout.slurm_conf.read_text().splitlines() if "=" in line]


def new_kernel_log(cluster: DevCluster, node: str) -> None:
    """As after a boot: an empty log, and nothing latched (this machine's boot id stays)."""
    cluster.kmsg(node).write_text("")
    for path in cluster.layout.cache(node).glob("**/*"):
        if path.is_file():
            path.unlink()


def tries(scene: Scene, node: str) -> list[RepairTry]:
    """Repairs of this node in the journal."""
    journal = scene.journal()
    try:
        return RepairLedger(journal).of(node)
    finally:
        journal.close()


def drained_by_a_prolog(scene: Scene, node: str, xid: str) -> None:
    """A job meets the fault, and its prolog drains the node."""
    wait_until(lambda: "until=" in scene.node(node).comment, 20, f"a permit\n{scene.tail()}")
    scene.cluster.add_kmsg(node, xid)
    job = scene.submit("-w", node, script="true")
    wait_until(lambda: "[repair" in scene.node(node).reason, 30, f"drained by its prolog\n{scene.tail()}")
    scene.cluster.run(["scancel", str(job)])


def test_a_node_is_rebooted_checked_and_back_before_any_job_starts_there(stage: Scene) -> None:
    """XID 79 in the kernel log; the daemon is killed right after its request; a person's drain is never touched."""
    stage.cluster.run(["scontrol", "update", "nodename=n2", "state=drain", "reason=bad fan"])
    sections = {"repair": REPAIR, "breaker": {"max_partition_share": 1.0}, "quarantine": {"recheck_command": []}}
    killed = stage.start(crash_after="reboot", **sections)
    drained_by_a_prolog(stage, "n1", LOST)
    waiting = stage.submit("-w", "n1", script="true")
    wait_until(lambda: rebooted(stage.cluster) == ["n1"], 30, f"RebootProgram was called\n{stage.tail()}")
    assert "srobust-quarantine-n1" in stage.ours()
    assert killed.wait(20) == -signal.SIGKILL
    stage.start(**sections)
    stage.cluster.kill_slurmd("n1")
    new_kernel_log(stage.cluster, "n1")
    stage.cluster.start_slurmd("n1", booted=True)
    wait_until(lambda: [t.outcome for t in tries(stage, "n1")] == ["passed"], 60, f"passed\n{stage.tail()}")
    (t,) = tries(stage, "n1")
    started_s = wait_until(lambda: stage.job(waiting).state == "COMPLETED" and stage.job(waiting).start_at_s, 60, "ran")
    journal = stage.journal()
    recheck = next(a for a in journal.actions(t.key) if a.kind == "recheck")
    journal.close()
    assert recheck.done_at_s is not None
    assert started_s is not None
    assert started_s >= int(recheck.done_at_s) - 1
    assert rebooted(stage.cluster) == ["n1"]
    assert not stage.ours()
    assert (stage.node("n2").reason, tries(stage, "n2")) == ("bad fan", [])


@pytest.mark.variant
def test_gpus_are_reset_although_the_prolog_still_sees_the_fault(
    stage: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job that resets them is let in, clears the latched XID, and checks the node."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/called\n')
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    stage.start(repair=REPAIR, breaker={"max_partition_share": 1.0}, quarantine={"recheck_command": []})
    drained_by_a_prolog(stage, "n1", MEMORY)
    assert "[repair gpu_reset]" in stage.node("n1").reason
    before = rebooted(stage.cluster)
    wait_until(lambda: [t.outcome for t in tries(stage, "n1")] == ["passed"], 60, f"passed\n{stage.tail()}")
    assert (tmp_path / "called").read_text() == "--gpu-reset\n"
    assert rebooted(stage.cluster) == before
    wait_until(lambda: "until=" in stage.node("n1").comment, 20, f"permitted again\n{stage.tail()}")
    assert stage.node("n1").usable
