"""Faults that only several looks show: what lasts, what grows, what has gone."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from fake_gpus import FakeGpus

from slurm_robust.nodecheck.checks.gpu import gpu_driver
from slurm_robust.nodecheck.engine import runner
from slurm_robust.nodecheck.engine.context import job_instances_of

BUSY = "gpu.*.clocks.reasons=0"


def pass_time(gpus: FakeGpus, name: str, seconds: float) -> None:
    """Make what the check remembers so much older."""
    path = gpus.cache / f"{name}.json"
    kept: dict[str, Any] = json.loads(path.read_text())
    if "at_s" in kept:
        kept["at_s"] -= seconds
    kept["since"] = {key: at_s - seconds for key, at_s in kept.get("since", {}).items()}
    path.write_text(json.dumps(kept))


@pytest.mark.parametrize(
    ("name", "fault", "reason", "lasting"),
    [
        ("gpu_throttle", "gpu.1.clocks.reasons=0x48", "hw_thermal", "fail"),
        ("gpu_throttle", "gpu.1.clocks.reasons=0x88", "power_brake", "fail"),
        ("gpu_throttle", "gpu.1.clocks.reasons=0x20", "sw_thermal", "warn"),
        ("gpu_throttle", "gpu.1.clocks.reasons=0x89", "power_brake", "warn"),  # idle: nothing is lost yet
        ("gpu_temperature", "gpu.1.temperature=90\n" + BUSY, "gpu_hot", "fail"),
        ("gpu_pcie", "gpu.1.pcie.width=8\n" + BUSY, "pcie_degraded", "fail"),
        ("gpu_pcie", "gpu.*.pcie.width=8\n" + BUSY, "pcie_degraded", "warn"),  # a machine made so
        ("gpu_fabric", "gpu.1.fabric.state=2", "fabric_starting", "fail"),
    ],
)
def test_what_lasts_is_told_apart_from_a_moment(
    gpus: FakeGpus, name: str, fault: str, reason: str, lasting: str
) -> None:
    """A first look warns; the same after ten minutes is worse; a look without it in between starts anew."""
    healthy = BUSY if name != "gpu_fabric" else ""
    assert gpus.verdict(name, fault) == ("warn", reason)
    assert gpus.verdict(name) == ("warn", reason)
    pass_time(gpus, name, 600)
    assert gpus.verdict(name) == (lasting, reason)
    assert gpus.verdict(name, healthy)[0] == "pass"
    assert gpus.verdict(name, fault) == ("warn", reason)


@pytest.mark.parametrize(
    ("name", "fault"), [("gpu_throttle", "gpu.1.clocks.reasons=0x88"), ("gpu_temperature", "gpu.1.temperature=90")]
)
def test_two_moments_hours_apart_are_not_what_lasts(gpus: FakeGpus, name: str, fault: str) -> None:
    """Where only prologs look, nobody knows what was between two of them."""
    assert gpus.verdict(name, fault, BUSY)[0] == "warn"
    pass_time(gpus, name, 7200)
    assert gpus.verdict(name)[0] == "warn"
    pass_time(gpus, name, 900)
    assert gpus.verdict(name)[0] == "fail"


def test_idle_looks_between_keep_a_short_link_in_mind(gpus: FakeGpus) -> None:
    """Prologs only see idle boards: they neither judge nor forget what a busy look saw."""
    short = "gpu.1.pcie.width=8"
    assert gpus.verdict("gpu_pcie", short, BUSY)[0] == "warn"
    pass_time(gpus, "gpu_pcie", 300)
    assert gpus.verdict("gpu_pcie", short) == ("pass", "pcie_idle")
    assert gpus.verdict("gpu_pcie", short, BUSY)[0] == "fail"


GROWTH = [
    # check, counter, grown by, in seconds, expected
    ("gpu_ecc", "ecc.volatile.corrected", 40, 60, "pass"),  # few
    ("gpu_ecc", "ecc.volatile.corrected", 60, 3600, "pass"),  # slow
    ("gpu_ecc", "ecc.volatile.corrected", 600, 3600, "warn"),
    ("gpu_nvlink_errors", "fi.59", 2, 60, "pass"),
    ("gpu_nvlink_errors", "fi.59", 5, 3600, "warn"),
    ("gpu_nvlink_errors", "fi.59", 5, 36000, "pass"),
    ("gpu_nvlink_errors", "fi.162.3", 5, 3600, "warn"),
    ("gpu_nvlink_errors", "fi.38", 100_000, 3600, "pass"),  # under a hundred a second
    ("gpu_nvlink_errors", "fi.38", 1_000_000, 3600, "warn"),
    ("gpu_pcie_errors", "pcie.replays", 10, 3, "pass"),
    ("gpu_pcie_errors", "pcie.replays", 100, 3600, "pass"),
    ("gpu_pcie_errors", "pcie.replays", 1000, 3600, "warn"),
    ("gpu_pcie_errors", "fi.180", 1, 3600, "warn"),
]


@pytest.mark.parametrize("case", GROWTH, ids=lambda case: f"{case[1]}+{case[2]}/{case[3]}s")
def test_counters_are_judged_by_their_growth(gpus: FakeGpus, case: tuple[str, str, int, int, str]) -> None:
    """Never by what they are: a million from before the first look is nothing; a reset is nothing either."""
    name, counter, more, seconds, expected = case
    assert gpus.verdict(name, f"gpu.*.{counter}=1000000")[0] == "pass"
    pass_time(gpus, name, seconds)
    assert gpus.verdict(name, f"gpu.*.{counter}=1000000\ngpu.2.{counter}={1_000_000 + more}")[0] == expected
    pass_time(gpus, name, seconds)
    assert gpus.verdict(name, f"gpu.*.{counter}=5")[0] == "pass"


def test_a_gpu_that_was_here_and_is_gone(gpus: FakeGpus) -> None:
    """Seen by slurmd's scripts; a job's own look sees only the job's GPUs, and says nothing."""
    assert gpus.verdict("gpu_identity", stage="periodic")[0] == "pass"
    assert gpus.verdict("gpu_identity", "gpus=7", stage="periodic") == ("warn", "gpu_gone")
    assert gpus.verdict("gpu_identity", "gpus=7", stage="full")[0] == "pass"
    assert gpus.verdict("gpu_identity", "", stage="periodic")[0] == "pass"


@pytest.mark.parametrize(
    ("scenario", "job_gpus", "expected"),
    [
        ("", (0, 7), ("pass", "gpus_known")),
        ("gpus=1", (0, 1), ("fail", "job_gpu_missing")),
        ("gpus=0", (0,), ("fail", "job_gpu_missing")),
        ("gpus=0", (), ("skip", "no_gpu")),
        ("gpu.6.lost=1\ngpu.7.lost=1", (0, 1, 2, 3, 4, 5, 6), ("fail", "job_gpu_missing")),
        ("", (0, 8), ("warn", "job_gpu_unknown")),
        ("gpu.*.mig.mode=1", (8, 9, 10), ("pass", "gpus_known")),
        ("gpu.*.minor=-", (0, 8), ("pass", "gpus_known")),
    ],
)
def test_the_job_s_gpus_are_there(
    gpus: FakeGpus, scenario: str, job_gpus: tuple[int, ...], expected: tuple[str, str]
) -> None:
    """Fewer than the job was given fails; a number that the driver does not use only warns."""
    assert gpus.verdict("gpu_identity", scenario, stage="prolog", job_gpus=job_gpus) == expected


ONE, OTHER = "MIG-11111111-2222-3333-4444-555555555555", "MIG-11111111-2222-3333-4444-666666666666"


@pytest.mark.parametrize(
    ("scenario", "stage", "expected"),
    [
        (f"instances={ONE},{OTHER}", "prolog", ("pass", "gpus_known")),
        (f"instances={ONE}", "prolog", ("fail", "job_instance_missing")),
        (f"instances={ONE}", "epilog", ("pass", "gpus_known")),
        # A driver that cannot tell, or does not answer so, accuses nobody.
        ("call.nvmlDeviceGetHandleByUUID=error:2", "prolog", ("pass", "gpus_known")),
        ("call.nvmlDeviceGetHandleByUUID=error:999", "prolog", ("pass", "gpus_known")),
        ("call.nvmlDeviceGetHandleByUUID=missing", "prolog", ("pass", "gpus_known")),
    ],
)
def test_the_job_s_mig_instances_are_there(
    gpus: FakeGpus, scenario: str, stage: str, expected: tuple[str, str]
) -> None:
    """An instance that was taken apart since slurmd started fails the prolog of the job that gets it."""
    told = gpus.verdict("gpu_identity", "gpu.*.mig.mode=1", scenario, stage=stage, job_instances=(ONE, OTHER))
    assert told == expected


@pytest.mark.parametrize(
    ("env", "instances"),
    [
        ({"CUDA_VISIBLE_DEVICES": f"{ONE},{OTHER}", "SLURM_JOB_GPUS": "8,9"}, (ONE, OTHER)),
        ({"SLURM_JOB_GPUS": ONE}, (ONE,)),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, ()),
        ({"CUDA_VISIBLE_DEVICES": f"{ONE},0"}, ()),
        ({"CUDA_VISIBLE_DEVICES": f"{ONE}\n"}, ()),
        ({"CUDA_VISIBLE_DEVICES": ",".join([ONE] * 200)}, ()),
        ({}, ()),
    ],
)
def test_instances_are_believed_only_in_shape(env: dict[str, str], instances: tuple[str, ...]) -> None:
    """Numbers, mixtures and whatever users may write there name none."""
    assert job_instances_of(env) == instances


def test_a_driver_that_hangs(gpus: FakeGpus) -> None:
    """In the kernel, in the midst of its work: unfit. While GPUs may be waking up: only when it lasts."""
    quick = replace(gpu_driver.check, deadline_s=1.5)

    def look(stage: str = "prolog") -> tuple[str, str, str]:
        finding = runner.run([quick], gpus.context(stage), {}, 5.0).results[0].finding
        return finding.status.value, finding.reason, finding.sentence

    gpus.scenario("gpu.2.call.nvmlDeviceGetTemperature=hang_in_kernel")
    assert look("periodic")[:2] == ("unknown", "driver_slow")  # a second look is due
    (gpus.cache / "gpu_driver.json").unlink()
    status, reason, sentence = look()
    assert (status, reason) == ("fail", "driver_hung")
    assert "nvmlDeviceGetTemperature of GPU 2" in sentence
    gpus.scenario("")
    assert look()[0] == "pass"
    gpus.scenario("call.nvmlInitWithFlags=hang_in_kernel")
    assert look()[:2] == ("unknown", "driver_slow")
    pass_time(gpus, "gpu_driver", 60)
    assert look()[:2] == ("fail", "driver_hung")
    gpus.scenario("gpu.2.call.nvmlDeviceGetTemperature=hang")
    (gpus.cache / "gpu_driver.json").unlink()
    assert look()[:2] == ("unknown", "driver_slow")
