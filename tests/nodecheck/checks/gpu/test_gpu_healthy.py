"""Healthy machines of every kind give no finding, at every stage; broken answers give no traceback."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_gpus import HEALTHY, FakeGpus
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_robust.nodecheck.engine import gpu_profiles, registry, runner
from slurm_robust.nodecheck.engine.context import STAGES, Context
from slurm_robust.nodecheck.engine.finding import NodeReport, Status
from slurm_robust.nodecheck.nvml import fields
from slurm_robust.nodecheck.nvml.session import ERRORS, NvmlSession

NVML_CHECKS = [check for check in registry.select("full") if check.lane == "nvml"]
C_TEXT = (Path(__file__).parents[2] / "fake_nvml" / "nvml.c").read_text()


def look(gpus: FakeGpus, stage: str, **more: Any) -> NodeReport:
    """All checks of NVML at once, in their lane."""
    checks = [check for check in NVML_CHECKS if stage in check.stages or stage == "full"]
    return runner.run(checks, gpus.context(stage, **more), {}, 20.0)


@pytest.mark.parametrize("machine", HEALTHY)
def test_a_healthy_machine_gives_no_finding(gpus: FakeGpus, machine: str) -> None:
    """Three looks at each stage: nothing but pass and skip, an old driver's gaps apart."""
    gpus.scenario(HEALTHY[machine])
    for stage in (*STAGES, *STAGES, "full"):
        job = {"job_id": 7, "job_gpus": (0,)} if stage in ("prolog", "epilog") else {}
        for result in look(gpus, stage, **job).results:
            told = (stage, result.name, result.finding.sentence)
            assert result.finding.status in (Status.PASS, Status.SKIP), told


def test_without_a_driver_everything_is_skipped() -> None:
    """A machine without GPUs (or a saved tree) is no fault."""
    for context in (Context("n1"), Context("n1", root=Path("/proc/self/fd"))):
        if context.real_root and Path("/proc/driver/nvidia/version").exists():
            continue
        for result in runner.run(NVML_CHECKS, context, {}, 20.0).results:
            assert result.finding.status is Status.SKIP, result


@pytest.mark.parametrize("call", ["nvmlInitWithFlags", "nvmlDeviceGetTemperature", "nvmlDeviceGetFieldValues"])
def test_a_hang_is_one_finding_of_the_driver(gpus: FakeGpus, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever call hangs, no check of the lane fails but the driver's own, and all are through in its time."""
    gpus.scenario(f"call.{call}=hang")
    quick = [replace(check, deadline_s=2.0) for check in NVML_CHECKS]
    report = runner.run(quick, gpus.context("periodic"), {}, 20.0)
    statuses = {result.name: result.finding.status for result in report.results}
    assert Status.FAIL not in statuses.values()
    assert Status.WARN not in statuses.values()
    assert Status.UNKNOWN in statuses.values()
    assert len({r.finding.sentence for r in report.results if r.finding.status is Status.UNKNOWN}) <= 2


@pytest.mark.parametrize("error", [1, 2, 3, 4, 7, 9, 13, 15, 25, 999, 1234])
def test_any_error_of_every_call_is_no_traceback(gpus: FakeGpus, error: int) -> None:
    """Each call of a GPU answering with an error: a finding of every check; a lost GPU fails, nothing else does."""
    calls = sorted(set(re.findall(r"nvmlDevice\w+", C_TEXT)))
    gpus.scenario(*(f"gpu.1.call.{call}=error:{error}" for call in calls))
    for result in look(gpus, "full").results:
        assert result.finding.reason not in ("probe_error", "judge_error"), result.finding
        if result.finding.status is Status.FAIL:
            assert (error, result.name) == (15, "gpu_driver"), result.finding


@pytest.mark.parametrize("seed", range(12))
def test_absurd_values_are_no_traceback(gpus: FakeGpus, seed: int) -> None:
    """Values that no board has: a finding of every check, in words."""
    chance = random.Random(seed)
    keys = sorted({part.split('"')[0] for part in C_TEXT.split('gpu, "')[1:]})
    absurd = ["-", "0", "1", "255", "4294967295", "18446744073709551615", "-1", "-273", "65536", "99999999999"]
    gpus.scenario(
        *(f"gpu.{n}.{key}={chance.choice(absurd)}" for n in range(8) for key in keys if chance.random() < 0.3)
    )
    for _ in range(2):
        for result in look(gpus, chance.choice(STAGES), job_id=3, job_gpus=(0, 1)).results:
            assert result.finding.reason not in ("probe_error", "judge_error"), result.finding
            assert len(result.finding.sentence) > 3


VALUES = st.none() | st.integers(-(2**40), 2**64) | st.lists(st.integers(-5, 5), min_size=2, max_size=2)
KEPT = st.recursive(
    st.none() | st.integers() | st.text(max_size=5) | st.booleans(),
    lambda inner: st.dictionaries(st.sampled_from(["boot_id", "at_s", "counts", "since", "known", "u1"]), inner),
)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_judge_takes_what_was_kept_broken_or_not(data: st.DataObject) -> None:
    """State that somebody truncated or wrote by hand, and GPUs of which only errors are known."""
    kept = data.draw(KEPT)
    error = data.draw(st.sampled_from(sorted(ERRORS.values())))
    asked = (*fields.READERS, *fields.FIELD_VALUES)
    gpu = {"index": 0, "bus": "0000:1b:00", "minor": 0, "uuid": "u1", "model": "X", "lost": "", "profile": {}}
    found = {
        "state": "",
        "detail": "",
        "hung": {},
        "system": {},
        "stage": "prolog",
        "boot_id": "b",
        "at_s": 9.0,
        "kept": kept if isinstance(kept, dict) else {},
        "gpus": [{**gpu, "values": {}, "errors": dict.fromkeys(asked, error)}],
        "in_driver": [],
        "job_gpus": [],
        "job_instances_missing": [],
        "job": None,
        "live_jobs": [],
        "processes": {},
        "root": False,
        "switches": 0,
        "manager": False,
        "on_host": True,
        "persistenced": True,
    }
    for check in NVML_CHECKS:
        finding = check.judge(found, check.settings({}))
        assert finding.status is not Status.FAIL
        if check.remember is not None:
            check.remember(found, check.settings({}))


def test_the_names_that_checks_ask_for_exist(gpus: FakeGpus) -> None:
    """A misspelt field would be an error of every look."""
    context = gpus.context()
    session = NvmlSession()
    asked: list[str] = []
    session.read = lambda names, limit_s: asked.extend(names)  # type: ignore[method-assign]
    context.shared["nvml"] = session
    for check in NVML_CHECKS:
        before = len(asked)
        check.probe(context, check.settings({}))
        assert len(asked) > before
    assert set(asked) <= {*fields.READERS, *fields.FIELD_VALUES}
    assert len(NVML_CHECKS) >= 20


@given(st.text(max_size=40))
def test_an_unknown_model_has_no_expectations(model: str) -> None:
    """Only names of the table have any."""
    assert bool(gpu_profiles.of(model)) == (gpu_profiles.plain(model) in gpu_profiles.PROFILES)


def test_every_profile_has_known_keys_of_the_right_type() -> None:
    """The table obeys what a site's own profiles must obey."""
    gpu_profiles.validate(gpu_profiles.PROFILES)
    assert set(gpu_profiles.KEYS) == set(gpu_profiles.MEANING)


@pytest.mark.parametrize("wrong", [{"links": 1}, {"nvlinks": "18"}, {"nvlinks": True}, {"ecc": 1}, {"memory_mib": -1}])
def test_a_site_s_profile_is_checked(wrong: dict[str, Any]) -> None:
    """An unknown key or a wrong value is named with its place."""
    with pytest.raises(registry.CheckError, match=r"nodecheck\.gpu_profiles\.X\."):
        gpu_profiles.validate({"X": wrong})


def test_a_site_s_profile_lies_over_ours() -> None:
    """By product name, with or without the maker's."""
    site = {"NVIDIA H200": {"nvlinks": 4}, "My Board": {"nvlinks": 2}}
    assert gpu_profiles.of("H200", site)["nvlinks"] == 4
    assert gpu_profiles.of("H200", site)["memory_mib"] == 140000
    assert gpu_profiles.of("My Board", site) == {"nvlinks": 2}
