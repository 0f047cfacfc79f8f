"""The remedy that a node writes into its drain reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_robust.core.model import Mode
from slurm_robust.marks.remedy import Remedy, remedy_of
from slurm_robust.nodecheck.catalogue.remedies import BY_FINDING, of_event, of_report
from slurm_robust.nodecheck.checks import gpu
from slurm_robust.nodecheck.engine.finding import Finding, NodeReport, Result
from slurm_robust.nodecheck.engine.registry import get
from slurm_robust.nodecheck.stages.gate import comment_of, decide
from slurm_robust.slurm.client import Node

CHECKS = Path(gpu.__file__).parent
RECOVERY = "GPU recovery action changed from 0x0 (None) to 0x%d (%s)"


@pytest.mark.parametrize(
    ("code", "message", "remedy"),
    [
        (79, "GPU has fallen off the bus", Remedy.REBOOT),
        (95, "uncontained", Remedy.GPU_RESET),
        (22013, "", None),
        (12020, "Fatal", Remedy.GPU_RESET),
        (64, "row remap failed", None),
        (48, "", Remedy.GPU_RESET),
        (54, "", None),
        (154, RECOVERY % (1, "GPU Reset Required"), Remedy.GPU_RESET),
        (154, RECOVERY % (2, "Node Reboot Required"), Remedy.REBOOT),
        (154, RECOVERY % (3, "Drain P2P"), None),
        (154, RECOVERY % (4, "Drain and Reset"), Remedy.GPU_RESET),
        (9999, "", None),
    ],
)
def test_remedy_of_a_code(code: int, message: str, remedy: Remedy | None) -> None:
    """NVIDIA's action; what calls for a person or a repair has none."""
    assert of_event(code, message) is remedy


def test_the_table_names_checks_that_are_there() -> None:
    """A check or a reason that is renamed takes its row along."""
    nvml = (CHECKS.parents[1] / "nvml" / "judging.py").read_text("utf-8")
    for name, reason in BY_FINDING:
        get(name)
        source = (CHECKS / f"{name}.py").read_text("utf-8") + nvml
        assert f'"{reason.removeprefix("recovery_")}"' in source, reason


def report(*codes: int, others: tuple[Result, ...] = ()) -> NodeReport:
    """A prolog that met these XIDs."""
    events = [{"gpu": "0000:9b:00", "xid": code, "message": "", "grade": "fail", "count": 1} for code in codes]
    failed = Result("xid", Finding.fail(f"xid_{codes[0]}", "XIDs [repair gpu_reset]", "look", {"events": events}))
    return NodeReport("n1", "prolog", (failed, *others))


def test_the_strongest_remedy_repairs_all_and_one_fault_without_takes_it_away() -> None:
    """A reboot resets the GPUs, too; a missing disk comes back with no reset."""
    assert of_report(report(95)) is Remedy.GPU_RESET
    assert of_report(report(95, 79)) is Remedy.REBOOT
    disk = Result("disks", Finding.fail("disk_missing", "2 of 3 disks", "look"))
    assert of_report(report(95, others=(disk,))) is None
    warned = Result("disks", Finding.warn("array", "rebuilding", "look"))
    assert of_report(report(95, others=(warned,))) is Remedy.GPU_RESET


def test_a_drain_reason_and_a_rechecks_comment_carry_it() -> None:
    """Before the job's tag, at the very end; and none that a text brought along."""
    permit = "[[srobust-drain-permit until=1100]]"
    node = Node("n1", "IDLE", comment=permit)
    reason = decide(report(79), Mode.ACT, node, 1000.0, 12).drain_reason
    assert reason == "srobust: XIDs [repair reboot] [job 12]"
    assert remedy_of(reason) is Remedy.REBOOT
    assert comment_of(report(79)) == "srobust-check: unfit: XIDs [repair reboot]"
    assert remedy_of(decide(report(64), Mode.ACT, node, 1000.0).drain_reason) is None
