"""GPUs that none are: a lost one, a pending remap, a hung driver, a driver without events, none at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from fake_gpus import FakeGpus, compile_fake
from helpers import wait_until
from watch_helpers import RunningService, at, kernel_lines

from slurm_robust.nodecheck.engine import registry
from slurm_robust.nodecheck.engine.context import Context
from slurm_robust.nodecheck.nvml import library as nvml
from slurm_robust.nodewatch import nvml_watch
from slurm_robust.nodewatch import service as node_service
from slurm_robust.nodewatch.gpu_numbers import GpuNumbers
from slurm_robust.nodewatch.verdicts import Verdicts

Watch = Callable[..., RunningService]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fake NVML, compiled once."""
    return compile_fake(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def service(library: Path, tmp_path: Path, watch: Watch) -> tuple[RunningService, FakeGpus]:
    """A service on a node with eight healthy H100, and what stands for their driver."""
    gpus = FakeGpus(library, tmp_path)
    made = watch(extra=f", nvml_library: {gpus.library}").start()
    wait_until((made.cache / "nodewatch" / "gpu_throttle.json").exists, 20, f"NVML is asked; {made.said()}")
    return made, gpus


def test_a_gpu_is_lost_and_comes_back(service: tuple[RunningService, FakeGpus]) -> None:
    """Now, with the number of its device file; and a note when it is back. The others are silent."""
    running, gpus = service
    assert [f for f in running.findings() if f.source == "nvml"] == [], "healthy GPUs say nothing"
    gpus.scenario("gpu.3.call.nvmlDeviceGetTemperature=error:15", "gpu.3.call.nvmlDeviceGetPerformanceState=error:15")
    lost = running.wait_for("gpu_driver", timeout_s=25)
    assert (lost.urgency, lost.gpus, lost.source) == ("now", (3,), "nvml")
    gpus.scenario("")
    assert running.wait_for("gpu_driver", 2, timeout_s=25).urgency == "note"


def test_a_pending_remap_waits_for_the_checkpoint(service: tuple[RunningService, FakeGpus]) -> None:
    """A warning of the check, and of this urgency."""
    running, gpus = service
    gpus.scenario("gpu.5.rows.pending=1")
    found = running.wait_for("gpu_rows", timeout_s=25)
    assert (found.urgency, found.gpus) == ("at_next_checkpoint", (5,))


def test_an_xid_event_is_judged_as_its_line_would_be(tmp_path: Path) -> None:
    """By the same check; codes whose line says how bad they are are left to the line."""
    gpus = GpuNumbers(tmp_path)
    gpus.learn({"00000000:9B:00.0": 6})
    lines = kernel_lines(tmp_path)
    lines._gpus = gpus
    verdicts = Verdicts("b", {name: registry.get(name).settings({}) for name in nvml_watch.CHECKS}, gpus, {})

    def event(code: int) -> list[tuple[str, tuple[int, ...]]]:
        found = nvml_watch.findings(verdicts, lines, gpus, {"xid": code, "bus": "00000000:9B:00.0"}, at(100))
        return [(seen.finding.urgency, seen.finding.gpus) for seen in found]

    assert event(79) == [("now", (6,))]
    assert event(31) == [("note", (6,))]
    assert event(74) == event(154) == []


def test_a_driver_that_hangs_is_abandoned(library: Path, tmp_path: Path, watch: Watch) -> None:
    """The service watches on, no GPU is called lost, and the child that hung is gone or remembered."""
    gpus = FakeGpus(library, tmp_path)
    gpus.scenario("call.nvmlDeviceGetTemperature=hang")
    running = watch(extra=f", nvml_library: {gpus.library}, deadline_s: 1.0").start()
    wait_until((running.cache / "nodewatch" / "gpu_driver.json").exists, 40, f"the hang is seen; {running.said()}")
    running.log("NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.")
    assert running.wait_for("xid", timeout_s=5).urgency == "now"
    assert [f for f in running.findings() if f.source == "nvml"] == []
    assert running.end() == 0


def test_a_hang_that_lasts_is_a_fault_of_the_node(library: Path, tmp_path: Path, watch: Watch) -> None:
    """As long as its check gives it; said once."""
    gpus = FakeGpus(library, tmp_path)
    gpus.scenario("call.nvmlDeviceGetTemperature=hang")
    options = "options: {gpu_driver: {hung_s: 1.0}}"
    running = watch(extra=f", nvml_library: {gpus.library}, {options}").start()
    hung = running.wait_for("gpu_driver", timeout_s=40)
    assert (hung.urgency, hung.gpus) == ("now", ())
    assert "hangs" in hung.text


def test_a_missing_binding_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what installs it; a node without a driver says nothing."""

    def missing() -> None:
        raise ImportError("no pynvml")

    said: list[str] = []
    monkeypatch.setattr(nvml, "binding", missing)
    assert node_service._nvml_wanted(Context("n1", nvml_library="/lib/libnvidia-ml.so.1"), said.append)
    (line,) = said
    assert line.endswith("-m pip install nvidia-ml-py")
    if not Path("/proc/driver/nvidia/version").exists():
        assert not node_service._nvml_wanted(Context("n1"), said.append)
        assert len(said) == 1
