"""One fault after another on the fake NVML: what each check makes of it, and that no other check fails of it."""

from __future__ import annotations

import pytest
from fake_gpus import A100_PCIE, B200, GH200, L40S, MIG, V100, FakeGpus

BUSY = "gpu.*.clocks.reasons=0\ngpu.*.utilization=90"

ONE_LOOK = [
    # check, scenario, options, status, reason
    ("gpu_driver", "", {}, "pass", "gpus_answer"),
    ("gpu_driver", "gpu.3.lost=1", {}, "fail", "gpu_lost"),
    ("gpu_driver", "gpu.3.call.nvmlDeviceGetTemperature=error:15", {}, "fail", "gpu_lost"),
    ("gpu_driver", "gpu.3.call.nvmlDeviceGetTemperature=error:16", {}, "fail", "gpu_lost"),
    ("gpu_driver", "gpu.3.call.nvmlDeviceGetHandleByIndex_v2=error:8", {}, "fail", "gpu_lost"),
    ("gpu_driver", "gpu.3.call.nvmlDeviceGetHandleByIndex_v2=error:4", {}, "unknown", "no_permission"),
    ("gpu_driver", "gpu.3.call.nvmlDeviceGetTemperature=error:999", {}, "warn", "gpu_silent"),
    ("gpu_driver", "call.nvmlInitWithFlags=error:18", {}, "fail", "driver_mismatch"),
    ("gpu_driver", "call.nvmlInitWithFlags=error:15", {}, "fail", "gpu_lost"),
    ("gpu_driver", "call.nvmlInitWithFlags=error:9", {}, "unknown", "nvml_driver_not_loaded"),
    ("gpu_driver", "call.nvmlInitWithFlags=error:999", {}, "unknown", "nvml_unknown"),
    ("gpu_driver", "gpus=0", {}, "skip", "no_gpu"),
    ("gpu_identity", "", {}, "pass", "gpus_known"),
    ("gpu_identity", "", {"model": "NVIDIA H100 80GB HBM3"}, "pass", "gpus_known"),
    ("gpu_identity", "", {"model": "H200"}, "fail", "wrong_model"),
    ("gpu_identity", "gpu.4.memory.total_mib=61000", {}, "fail", "memory_missing"),
    ("gpu_identity", "gpu.*.name=My Board\ngpu.4.memory.total_mib=61000", {}, "warn", "memory_odd"),
    ("gpu_identity", "gpu.*.uuid=GPU-1", {}, "warn", "same_uuid"),
    ("gpu_identity", "gpu.*.name=NVIDIA H100-40C\ngpu.*.memory.total_mib=40960", {}, "pass", "gpus_known"),
    ("gpu_recovery", "", {}, "pass", "no_recovery"),
    ("gpu_recovery", "gpu.1.fi.230=1", {}, "fail", "recovery_reset"),
    ("gpu_recovery", "gpu.1.fi.230=2", {}, "fail", "recovery_reboot"),
    ("gpu_recovery", "gpu.1.fi.230=3", {}, "warn", "recovery_drain_p2p"),
    ("gpu_recovery", "gpu.1.fi.230=4", {}, "fail", "recovery_drain_reset"),
    ("gpu_recovery", "gpu.1.fi.230=99", {}, "warn", "recovery_other"),
    ("gpu_recovery", "gpu.*.fi.230=-", {}, "skip", "not_supported"),
    ("gpu_ecc", "", {}, "pass", "ecc_clean"),
    ("gpu_ecc", "gpu.2.ecc.volatile.uncorrected=1", {}, "warn", "uncorrectable_errors"),
    ("gpu_ecc", V100 + "gpu.2.ecc.volatile.uncorrected=1", {}, "fail", "uncorrectable_errors"),
    ("gpu_ecc", "gpu.2.ecc.aggregate.uncorrected=7", {}, "pass", "ecc_clean"),  # of the board's life
    ("gpu_ecc", "gpu.2.ecc.sram_threshold_exceeded=1", {}, "fail", "sram_threshold"),
    ("gpu_ecc", "gpu.*.ecc.mode=0", {}, "warn", "ecc_off"),
    ("gpu_ecc", "gpu.1.ecc.pending=0", {}, "warn", "ecc_pending"),
    ("gpu_ecc", L40S + "gpu.1.ecc.mode=0", {}, "warn", "ecc_odd"),
    ("gpu_ecc", L40S + "gpu.*.ecc.mode=0", {}, "pass", "ecc_clean"),  # a site may switch GDDR's off
    ("gpu_ecc", "gpu.*.ecc.mode=-", {}, "skip", "not_supported"),
    ("gpu_ecc", "gpu.*.call.nvmlDeviceGetEccMode=error:4", {}, "unknown", "not_told"),
    ("gpu_ecc", "gpu.*.call.nvmlDeviceGetEccMode=missing", {}, "unknown", "old_driver"),
    ("gpu_rows", "", {}, "pass", "rows_spare"),
    ("gpu_rows", "gpu.5.rows.failed=1", {}, "fail", "remap_failed"),
    ("gpu_rows", "gpu.5.rows.pending=1", {}, "warn", "remap_pending"),
    ("gpu_rows", "gpu.5.rows.pending=1", {"pending_fails": True}, "fail", "remap_pending"),
    ("gpu_rows", "gpu.5.rows.uncorrected=3", {}, "pass", "rows_spare"),
    ("gpu_rows", "gpu.5.rows.none=1", {}, "warn", "no_spare_rows"),
    ("gpu_rows", "gpu.5.rows.low=1", {}, "warn", "few_spare_rows"),
    ("gpu_rows", "gpu.5.repair.tpc=1", {}, "warn", "repair_pending"),
    ("gpu_rows", V100, {}, "skip", "not_supported"),
    ("gpu_rows", MIG, {}, "skip", "mig"),
    ("gpu_pages", "", {}, "skip", "not_supported"),
    ("gpu_pages", V100, {}, "pass", "pages_few"),
    ("gpu_pages", V100 + "gpu.1.retired.double=15", {}, "warn", "pages_double"),
    ("gpu_pages", V100 + "gpu.1.retired.double=15\ngpu.1.retired.single=45", {}, "fail", "pages_exhausted"),
    ("gpu_pages", V100 + "gpu.1.retired.pending=1", {}, "warn", "page_pending"),
    ("gpu_pages", V100 + "gpu.1.retired.pending=1\ngpu.1.fi.93=1", {}, "fail", "page_pending_double"),
    ("gpu_nvlink", "", {}, "pass", "nvlinks_up"),
    ("gpu_nvlink", "gpu.6.nvlink.4.active=0", {}, "fail", "nvlink_down"),
    ("gpu_nvlink", "gpu.*.nvlink.4.active=0", {}, "warn", "nvlinks_few"),
    ("gpu_nvlink", "gpu.*.nvlink.active=0", {}, "skip", "no_nvlink"),  # a part of a machine
    ("gpu_nvlink", "gpu.*.nvlink.active=0", {"expected": 18}, "fail", "nvlink_down"),
    ("gpu_nvlink", "gpus=1\ngpu.0.nvlink.active=0", {}, "skip", "no_nvlink"),
    ("gpu_nvlink", A100_PCIE, {}, "skip", "no_nvlink"),  # NVSentinel#1481: no bridge is no fault
    ("gpu_nvlink", A100_PCIE + "gpu.*.nvlink.active=1", {}, "pass", "nvlinks_up"),
    ("gpu_nvlink", A100_PCIE + "gpu.0.nvlink.active=1", {}, "warn", "nvlink_down"),
    ("gpu_nvlink", L40S, {}, "skip", "no_nvlink"),
    ("gpu_nvlink", "gpu.2.fi.90=13281", {}, "warn", "nvlink_slow"),
    ("gpu_nvlink", B200, {}, "pass", "nvlinks_up"),
    ("gpu_nvlink", "gpu.*.name=My Board\ngpu.*.nvlink.3.active=0", {}, "pass", "nvlinks_up"),
    ("gpu_nvlink", GH200, {}, "skip", "no_nvlink"),
    ("gpu_nvlink", GH200 + "gpu.0.fi.171.3=0", {}, "warn", "c2c_down"),
    ("gpu_nvlink", MIG, {}, "skip", "no_nvlink"),
    ("gpu_fabric", "", {}, "pass", "fabric_joined"),
    ("gpu_fabric", "gpu.*.fabric.state=1", {}, "fail", "fabric_not_started"),  # long after boot
    (
        "gpu_fabric",
        "gpus=4\ngpu.*.fabric.state=1",
        {},
        "warn",
        "fabric_not_started",
    ),  # four are joined without switches
    ("gpu_fabric", "gpu.*.name=My Board\ngpu.*.fabric.state=1", {}, "warn", "fabric_not_started"),
    ("gpu_fabric", "gpu.*.fabric.state=2", {}, "warn", "fabric_starting"),
    ("gpu_fabric", "gpu.2.fabric.status=999", {}, "fail", "fabric_failed"),
    ("gpu_fabric", "gpu.2.fabric.health=0x1", {}, "warn", "fabric_degraded"),
    ("gpu_fabric", "gpu.2.fabric.health=0x12", {}, "fail", "fabric_unhealthy"),
    ("gpu_fabric", "gpu.2.fabric.health=0x502", {}, "warn", "fabric_configuration"),
    ("gpu_fabric", "gpu.2.fabric.health=0x102", {}, "pass", "fabric_joined"),
    ("gpu_fabric", "gpu.2.fabric.summary=2", {}, "warn", "fabric_unwell"),
    ("gpu_fabric", "fabric.version=2", {}, "pass", "fabric_joined"),
    ("gpu_fabric", "call.nvmlDeviceGetGpuFabricInfoV=missing", {}, "pass", "fabric_joined"),
    ("gpu_fabric", "call.nvmlDeviceGetGpuFabricInfoV=missing\ngpu.*.fabric.state=1", {}, "fail", "fabric_not_started"),
    ("gpu_fabric", "gpus=1\ngpu.*.fabric.state=1", {}, "skip", "one_gpu"),
    ("gpu_fabric", L40S, {}, "skip", "no_fabric"),
    ("gpu_pcie", "", {}, "pass", "pcie_idle"),
    ("gpu_pcie", "gpu.*.pcie.generation=1", {}, "pass", "pcie_idle"),  # sichek#49: idle is no fault
    ("gpu_pcie", "gpu.*.pcie.generation=1\ngpu.*.pstate=8\n" + BUSY, {}, "pass", "pcie_idle"),
    ("gpu_pcie", BUSY, {}, "pass", "pcie_full"),
    ("gpu_pcie", BUSY + "\ngpu.3.pcie.generation=1", {}, "warn", "pcie_degraded"),
    ("gpu_pcie", BUSY + "\ngpu.3.pcie.width=8", {}, "warn", "pcie_degraded"),
    ("gpu_throttle", "", {}, "pass", "not_throttled"),
    ("gpu_throttle", "gpu.1.clocks.reasons=0x4", {}, "pass", "not_throttled"),  # a power cap kept by software
    ("gpu_throttle", "gpu.1.clocks.reasons=0x48", {}, "warn", "hw_thermal"),
    ("gpu_throttle", "gpu.1.clocks.reasons=0x88", {}, "warn", "power_brake"),
    ("gpu_throttle", "gpu.1.clocks.reasons=0x08", {}, "warn", "hw_slowdown"),
    ("gpu_throttle", "gpu.1.clocks.reasons=0x20", {}, "warn", "sw_thermal"),
    ("gpu_temperature", "", {}, "pass", "cool"),
    ("gpu_temperature", "gpu.0.temperature=89\n" + BUSY, {}, "warn", "gpu_hot"),
    ("gpu_temperature", "gpu.0.temperature=88\n" + BUSY, {}, "pass", "cool"),
    ("gpu_temperature", "gpu.0.fi.82=95\n" + BUSY, {}, "warn", "memory_hot"),
    ("gpu_temperature", "gpu.0.temperature.threshold.1=-\ngpu.0.temperature.margin=0", {}, "warn", "gpu_hot"),
    ("gpu_temperature", "gpu.0.temperature.threshold.1=0", {}, "pass", "cool"),
    ("gpu_temperature", "gpu.0.temperature=65", {}, "warn", "hotter_idle"),
    ("gpu_temperature", "gpu.0.temperature=65\n" + BUSY, {}, "pass", "cool"),
    ("gpu_power", "", {}, "pass", "power_limits"),
    ("gpu_power", "gpu.*.power.enforced=500000", {}, "pass", "power_limits"),  # a site may cap all
    ("gpu_power", "gpu.2.power.enforced=500000", {}, "warn", "power_limit_odd"),
    ("gpu_power", "gpu.2.power.enforced=500000", {"expected_w": 700}, "fail", "power_limit_low"),
    ("gpu_clocks", "", {}, "pass", "clocks_free"),
    ("gpu_clocks", "gpu.2.clock.application.1=1200", {}, "warn", "clocks_low"),
    ("gpu_clocks", "gpu.2.clock.max.1=1200", {}, "warn", "clocks_odd"),
    ("gpu_clocks", "gpu.*.clock.1=210", {}, "pass", "clocks_free"),
    ("gpu_persistence", "", {}, "pass", "persistence_on"),
    ("gpu_persistence", "gpu.*.persistence=0", {}, "warn", "persistence_off"),
    ("gpu_persistence", "gpu.*.persistence=0", {"wanted": False}, "pass", "persistence_on"),
    ("gpu_compute_mode", "", {}, "pass", "compute_mode_fits"),
    ("gpu_compute_mode", "gpu.1.compute_mode=2", {}, "fail", "compute_prohibited"),
    ("gpu_compute_mode", "gpu.1.compute_mode=3", {}, "warn", "compute_odd"),
    ("gpu_compute_mode", "gpu.*.compute_mode=3", {}, "pass", "compute_mode_fits"),
    ("gpu_compute_mode", "gpu.*.compute_mode=3", {"mode": "default"}, "fail", "compute_mode"),
    ("gpu_mig", "", {}, "pass", "mig_fits"),
    ("gpu_mig", MIG, {}, "pass", "mig_fits"),
    ("gpu_mig", MIG, {"mode": "off"}, "fail", "mig_mode"),
    ("gpu_mig", "gpu.1.mig.pending=1", {}, "warn", "mig_pending"),
    ("gpu_mig", L40S, {}, "skip", "not_supported"),
    ("gpu_versions", "", {}, "pass", "versions_fit"),
    ("gpu_versions", "", {"driver": "570", "cuda": "12.8", "vbios": "96.00.99.00.01"}, "pass", "versions_fit"),
    ("gpu_versions", "", {"driver": "57"}, "fail", "wrong_driver"),
    ("gpu_versions", "", {"cuda": "13.0"}, "fail", "wrong_cuda"),
    ("gpu_versions", "", {"vbios": "1"}, "fail", "wrong_vbios"),
    ("gpu_versions", "gpu.7.vbios=96.00.30.00.01", {}, "warn", "vbios_odd"),
    ("gpu_gsp", "", {}, "pass", "gsp_fits"),
    ("gpu_gsp", "gpu.*.gsp.mode=0", {}, "pass", "gsp_fits"),
    ("gpu_gsp", "gpu.1.gsp.mode=0", {}, "warn", "gsp_odd"),
    ("gpu_gsp", "gpu.1.gsp.version=535.54.03", {}, "warn", "gsp_version"),
    ("gpu_gsp", "", {"mode": "off"}, "warn", "gsp_mode"),
    ("gpu_gsp", V100, {}, "skip", "not_supported"),
    ("gpu_inforom", "", {}, "pass", "inforom_valid"),
    ("gpu_inforom", "gpu.4.call.nvmlDeviceValidateInforom=error:14", {}, "warn", "inforom_corrupted"),
    ("gpu_inforom", "gpu.*.call.nvmlDeviceValidateInforom=missing", {}, "skip", "not_supported"),
]


@pytest.mark.parametrize("case", ONE_LOOK, ids=lambda case: f"{case[0]}-{case[4]}")
def test_one_look(gpus: FakeGpus, case: tuple[str, str, dict[str, object], str, str]) -> None:
    """The table says what the first look at each fault comes to."""
    name, scenario, options, status, reason = case
    assert gpus.verdict(name, scenario, options=options) == (status, reason)


def test_a_sentence_names_the_gpu_and_its_slot(gpus: FakeGpus) -> None:
    """Number and PCI name, so that somebody finds the board; several are counted up."""
    gpus.scenario("gpu.5.rows.failed=1")
    assert gpus.look("gpu_rows").sentence == "a memory row could not be remapped on GPU 5 (0000:6b:00)"
    gpus.scenario("gpu.5.rows.failed=1", "gpu.1.rows.failed=1")
    assert gpus.look("gpu_rows").sentence == "a memory row could not be remapped on GPUs 1, 5"


def test_a_lost_gpu_fails_one_check_and_hides_no_other(gpus: FakeGpus) -> None:
    """The others judge the seven that answer."""
    gpus.scenario("gpu.3.lost=1", "gpu.5.rows.failed=1")
    assert gpus.verdict("gpu_rows") == ("fail", "remap_failed")
    assert gpus.verdict("gpu_temperature") == ("pass", "cool")
    gpus.scenario("gpus=1", "gpu.0.lost=1")
    assert gpus.verdict("gpu_temperature")[0] != "fail"
