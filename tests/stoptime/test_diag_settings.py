"""What NVIDIA's diagnosis leaves on the GPUs, and whether it is begun at all: a fake NVML below the real binding."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from fake_gpus import FakeGpus, compile_fake

from slurm_robust.stoptime import node_tools

PASSES = json.dumps({"DCGM Diagnostic": {"test_categories": []}})


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeGpus:
    """Eight GPUs, and robust.yaml that names their library."""
    (tmp_path / "built").mkdir()
    (tmp_path / "gpus").mkdir()
    fake = FakeGpus(compile_fake(tmp_path / "built"), tmp_path / "gpus")
    (tmp_path / "robust.yaml").write_text(
        f"nodecheck:\n  nvml_library: {fake.library}\n  cache_dir: {tmp_path / 'cache'}\n"
    )
    monkeypatch.setenv("SROBUST_CONFIG", str(tmp_path / "robust.yaml"))
    return fake


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, *changes: str, name: str = "dcgmi") -> None:
    """A tool that passes after it has changed what the driver shows."""
    lines = "".join(f"echo '{change}' >> {folder}/gpus/scenario\n" for change in changes)
    tool = folder / name
    tool.write_text(f"#!/bin/sh\necho \"$*\" >> {folder}/calls\n{lines}echo '{PASSES}'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/bin:/usr/bin")


def notes_of(limit_s: float) -> list[str]:
    """The notes of a run in a process of its own, as the agent starts it: the binding keeps its library for good."""
    argv = [sys.executable, "-m", "slurm_robust.stoptime.node_tools", str(limit_s)]
    found: list[str] = json.loads(subprocess.check_output(argv))["notes"]
    return found


def test_a_diagnosis_for_which_too_little_time_is_left_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be killed on the way, and leave the GPUs as they are then; the note says what it needs."""
    install(tmp_path, monkeypatch)
    found = node_tools.run(60.0)
    assert found["notes"] == ["dcgmi diag -r 2 was not begun: it needs 150 s, about 40 s were left of the budget"]
    assert not (tmp_path / "calls").exists()


def test_what_a_diagnosis_leaves_is_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: FakeGpus) -> None:
    """Persistence mode and application clocks; a lock of clocks is said, for nobody knows whose it is."""
    install(
        tmp_path,
        monkeypatch,
        "gpu.0.persistence=0",
        "gpu.1.clock.application.1=900",
        "gpu.2.clocks.reasons=2",
    )
    notes = notes_of(300.0)
    assert [note.partition(" on GPU")[0] for note in notes] == [
        "dcgmi diag -r 2 left persistence mode off",
        "dcgmi diag -r 2 left application clocks at 2619,900 MHz",
        "dcgmi diag -r 2 left clocks that look locked",
    ]
    assert [note.rpartition(": ")[2].partition(" (")[0] for note in notes] == ["put back", "put back", "not put back"]
    assert "nvidia-smi -rgc" in notes[2]
    assert gpus.verdict("gpu_persistence")[0] == "pass"
    assert gpus.verdict("gpu_clocks")[0] == "pass"


def test_what_cannot_be_put_back_is_said_with_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: FakeGpus
) -> None:
    """A user's own test has not root's rights; a site that works without persistence mode is told nothing."""
    gpus.scenario("gpu.*.call.nvmlDeviceSetPersistenceMode=error:4", "gpu.3.persistence=0")
    install(tmp_path, monkeypatch, *(f"gpu.{gpu}.persistence=0" for gpu in (0, 3)))
    (note,) = notes_of(300.0)
    assert note.count("0000:") == 1
    assert note.endswith("not put back (no_permission); as root type nvidia-smi -pm 1")


def test_eud_is_run_where_it_is_asked_for_and_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Off by default; where it is not installed that is said."""
    install(tmp_path, monkeypatch)
    monkeypatch.delenv("SROBUST_CONFIG", raising=False)
    assert node_tools.run(4000.0)["missing"] == ["nvbandwidth"]
    assert node_tools.run(4000.0, eud=True)["missing"] == ["nvbandwidth", node_tools.EUD]
    eud = replace(node_tools._TOOLS[node_tools.EUD], folder=str(tmp_path))
    monkeypatch.setitem(node_tools._TOOLS, node_tools.EUD, eud)
    assert "it needs 1800 s" in " ".join(node_tools.run(900.0, eud=True)["notes"])
    node_tools.run(4000.0, eud=True)
    assert (tmp_path / "calls").read_text().splitlines()[-1] == "diag -r eud -j"


def test_an_eud_that_was_skipped_is_said_and_a_skipped_part_of_a_suite_is_not() -> None:
    """On a GPU that it does not know, nothing was tested; a suite leaves out on many boards what they have not."""
    results = [{"entity_group": "GPU", "entity_id": 0, "status": "Skip", "info": ["no support for this GPU"]}]
    text = json.dumps({"DCGM Diagnostic": {"test_categories": [{"tests": [{"name": "eud", "results": results}]}]}})
    assert node_tools._TOOLS[node_tools.EUD].judged(text).note == "dcgmi diag eud was skipped on GPU 0"
    assert node_tools.judge_dcgm(text) == node_tools.ToolResult()


def test_a_diagnosis_that_is_called_off_leaves_the_gpus_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: FakeGpus
) -> None:
    """The test's command ends while it runs: what the diagnosis changed until then is put back."""
    install(tmp_path, monkeypatch, "gpu.0.persistence=0")
    (tmp_path / "dcgmi").write_text((tmp_path / "dcgmi").read_text().replace("echo '{", "exec sleep 60\necho '{"))
    child = subprocess.Popen(
        [sys.executable, "-m", "slurm_robust.stoptime.node_tools", "300"], env=os.environ, start_new_session=True
    )
    end_s = time.monotonic() + 20.0
    while "gpu.0.persistence=0" not in (gpus.folder / "scenario").read_text() and time.monotonic() < end_s:
        time.sleep(0.02)
    os.killpg(child.pid, signal.SIGTERM)
    child.wait(10)
    assert gpus.verdict("gpu_persistence")[0] == "pass"
