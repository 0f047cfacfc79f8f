"""The output of NVIDIA's own tests, judged, and tools that are missing, hang or print nonsense."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.stoptime import node_tools

OLD = {"gpu_ids": "2", "status": "FAIL", "warnings": [{"warning": "GPU 2: uncorrectable errors", "error_severity": 2}]}
NEW = {
    "entity_group": "GPU",
    "entity_group_id": 1,
    "entity_id": 5,
    "status": "Fail",
    "warnings": [
        {"error_category": 10, "error_id": 43, "error_severity": 6, "warning": "Memory mismatch\n on GPU 5"},
    ],
}


def diag(name: str, *results: dict[str, Any]) -> str:
    """The output of a run with one test."""
    passed = {"name": "Denylist", "results": [{"gpu_ids": "0,1", "status": "PASS"}]}
    tests = [passed, {"name": "memory", "results": list(results), "test_summary": {"status": "Fail"}}]
    return json.dumps({name: {"test_categories": [{"category": "Hardware", "tests": tests}]}})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (diag("DCGM GPU Diagnostic", OLD), "dcgmi diag memory fails on GPU 2: GPU 2: uncorrectable errors"),
        (diag("DCGM Diagnostic", NEW), "dcgmi diag memory fails on GPU 5: Memory mismatch on GPU 5"),
        (
            diag("DCGM GPU Diagnostic", {"gpu_id": "1", "status": "Fail", "warnings": "bad page"}),
            "dcgmi diag memory fails on GPU 1: bad page",
        ),
    ],
)
def test_a_failing_diagnosis_says_so_in_its_own_words(text: str, sentence: str) -> None:
    """In the formats of releases 2, 3 and 4."""
    assert node_tools.judge_dcgm(text) == node_tools.ToolResult((sentence,))


def test_what_passes_is_skipped_or_is_the_set_up_is_no_failure() -> None:
    """DCGM's own severities and categories say that a failure is one of configuration, or of DCGM itself."""
    assert node_tools.judge_dcgm(diag("DCGM Diagnostic", {**NEW, "status": "Skip"})) == node_tools.ToolResult()
    for code in ({"error_severity": 5}, {"error_category": 16}, {"error_category": 3}):
        found = node_tools.judge_dcgm(diag("DCGM Diagnostic", {**NEW, "warnings": [NEW["warnings"][0] | code]}))
        assert found.failed == ()
        assert "memory fails on GPU 5" in found.note
    down = node_tools.judge_dcgm(json.dumps({"DCGM Diagnostic": {"runtime_error": "no hostengine"}}))
    assert down == node_tools.ToolResult(note="dcgmi diag did not run: no hostengine")


def test_nvbandwidth_that_copies_wrong_data_fails_and_one_that_cannot_run_is_a_note() -> None:
    """Its own comparison is printed before its JSON."""
    cases = [{"name": "host_to_device_memcpy_ce", "status": "Passed", "bandwidth_matrix": [["55.3"]], "sum": 55.3}]
    good = json.dumps({"nvbandwidth": {"testcases": cases}})
    assert node_tools.judge_nvbandwidth(good) == node_tools.ToolResult()
    wrong = node_tools.judge_nvbandwidth(f" Invalid value when checking the pattern at 0x7f\n{good}")
    assert wrong.failed == ("nvbandwidth copied wrong data: Invalid value when checking the pattern at 0x7f",)
    error = json.dumps({"nvbandwidth": {"error": "[CUDA_ERROR_NO_DEVICE]", "testcases": cases}})
    assert node_tools.judge_nvbandwidth(error).failed == ()
    assert "it says: [CUDA_ERROR_NO_DEVICE]" in node_tools.judge_nvbandwidth(error).note


@given(st.text() | st.recursive(st.none() | st.text() | st.integers(), st.lists).map(json.dumps))
def test_whatever_a_tool_prints_blames_nobody(text: str) -> None:
    """Output that is no result is a note."""
    for judged in (node_tools.judge_dcgm, node_tools.judge_nvbandwidth):
        found = judged(text)
        assert found.failed == ()
        assert "printed no result that can be read" in found.note


def need_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each tool need a second: it is begun, and does not end."""
    for name, tool in node_tools._TOOLS.items():
        monkeypatch.setitem(node_tools._TOOLS, name, replace(tool, needs_s=1.0))


def test_tools_on_path_are_run_and_others_are_said_to_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A diagnosis that hangs ends with its time."""
    (tmp_path / "nvbandwidth").write_text("#!/bin/sh\necho '" + json.dumps({"nvbandwidth": {"error": "old"}}) + "'\n")
    (tmp_path / "dcgmi").write_text("#!/bin/sh\nexec sleep 60\n")
    for path in tmp_path.iterdir():
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    need_little(monkeypatch)
    found = node_tools.run(2.0)
    assert found["failed"] == found["missing"] == []
    assert found["notes"] == [
        "nvbandwidth did not run its tests; it says: old",
        "dcgmi diag -r 2 did not end within 1 s",
    ]
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert node_tools.run(2.0)["missing"] == ["nvbandwidth", "dcgmi diag -r 2"]


def test_a_diagnosis_that_takes_too_long_may_end_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is its service that computes: killed outright, the tool could not call that off."""
    tool = tmp_path / "dcgmi"
    tool.write_text(f"#!/bin/sh\ntrap 'echo ended > {tmp_path}/said; exit 1' TERM\nwhile true; do sleep 0.1; done\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    need_little(monkeypatch)
    found = node_tools.run(4.0)
    assert found["notes"] == ["dcgmi diag -r 2 did not end within 3 s"]
    assert (tmp_path / "said").read_text() == "ended\n"
