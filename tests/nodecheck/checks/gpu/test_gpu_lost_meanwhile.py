"""A GPU that is lost while it is looked at: the first check has passed, and the node is unfit all the same."""

from __future__ import annotations

import pytest
from fake_gpus import FakeGpus

from slurm_robust.nodecheck.engine import registry, runner
from slurm_robust.nodecheck.engine.finding import Fitness, NodeReport, Status

LATER = [
    ("gpu_ecc", "nvmlDeviceGetEccMode"),
    ("gpu_rows", "nvmlDeviceGetRemappedRows"),
    ("gpu_pcie", "nvmlDeviceGetCurrPcieLinkWidth"),
    ("gpu_power", "nvmlDeviceGetEnforcedPowerLimit"),
    ("gpu_mig", "nvmlDeviceGetMigMode"),
    ("gpu_identity", "nvmlDeviceGetMemoryInfo_v2"),
    ("gpu_recovery", "nvmlDeviceGetFieldValues"),
    ("gpu_in_use", "nvmlDeviceGetComputeRunningProcesses_v3"),
    ("gpu_inforom", "nvmlDeviceValidateInforom"),
]


def look(gpus: FakeGpus, *names: str) -> NodeReport:
    """These checks, one after another in their lane."""
    return runner.run([registry.get(name) for name in names], gpus.context(), {}, 20.0)


@pytest.mark.parametrize("error", [15, 16])
@pytest.mark.parametrize(("name", "call"), LATER)
def test_a_loss_after_the_first_check_makes_the_node_unfit(gpus: FakeGpus, name: str, call: str, error: int) -> None:
    """Whichever call it is that first hears of it, its check fails and names the GPU."""
    gpus.scenario(f"gpu.3.call.{call}=error:{error}")
    report = look(gpus, "gpu_driver", name)
    first, later = (result.finding for result in report.results)
    assert (first.status, later.status, later.reason) == (Status.PASS, Status.FAIL, "gpu_lost")
    assert "GPU 3 (0000:4b:00)" in later.sentence
    assert report.verdict is Fitness.UNFIT


@pytest.mark.parametrize(("name", "call"), LATER)
def test_another_error_is_no_loss(gpus: FakeGpus, name: str, call: str) -> None:
    """A call that fails otherwise, or that the board does not have, makes no node unfit."""
    for error in (3, 999):
        gpus.scenario(f"gpu.3.call.{call}=error:{error}")
        assert look(gpus, "gpu_driver", name).verdict is not Fitness.UNFIT


def test_a_loss_that_the_first_check_told_is_told_once(gpus: FakeGpus) -> None:
    """The checks after it judge the GPUs that are left."""
    gpus.scenario("gpu.3.lost=1")
    findings = [result.finding for result in look(gpus, "gpu_driver", "gpu_ecc", "gpu_power").results]
    assert [finding.status for finding in findings] == [Status.FAIL, Status.PASS, Status.PASS]
