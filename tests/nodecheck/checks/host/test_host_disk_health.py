from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.nodecheck.checks.host import disk_health
from slurm_robust.nodecheck.engine import registry
from slurm_robust.nodecheck.engine.context import Context

NVME = {
    "smart_status": {"passed": True, "nvme": {"value": 0}},
    "nvme_smart_health_information_log": {
        "critical_warning": 0,
        "temperature": 38,
        "available_spare": 100,
        "available_spare_threshold": 10,
        "percentage_used": 3,
        "media_errors": 0,
    },
}


def nvme(passed: bool = True, **change: Any) -> str:
    """What smartctl says of an NVMe disk."""
    log = {**NVME["nvme_smart_health_information_log"], **change}
    return json.dumps({"smart_status": {"passed": passed}, "nvme_smart_health_information_log": log})


def ata(pending: int, *, passed: bool = True) -> str:
    """What smartctl says of an ATA disk."""
    rows = [{"id": 5, "raw": {"value": 8}}, {"id": 197, "raw": {"value": pending}}, {"id": 198, "raw": {"value": 0}}]
    return json.dumps({"smart_status": {"passed": passed}, "ata_smart_attributes": {"table": rows}})


@pytest.mark.parametrize(
    ("answer", "expected", "words"),
    [
        (nvme(), "disks_healthy", ""),
        (nvme(critical_warning=1), "disk_worn", "spare blocks"),
        (nvme(critical_warning=8), "disk_worn", "only be read"),
        (nvme(critical_warning=2), "disks_healthy", ""),  # warm: it slows itself
        (nvme(available_spare=5), "disk_worn", "5 %"),
        (nvme(percentage_used=120), "disk_worn", "rated life"),
        (nvme(media_errors=900), "disks_healthy", ""),  # an absolute count says nothing
        (nvme(passed=False), "disk_worn", "failing"),
        (ata(0), "disks_healthy", ""),
        (ata(3), "disk_worn", "3 sectors"),
        (ata(0, passed=False), "disk_worn", "failing"),
        ("{}", "no_answer", ""),
        ("", "no_answer", ""),
        ('{"smart_status": 7, "ata_smart_attributes": {"table": [1, {"id": 197, "raw": "x"}]}}', "no_answer", ""),
    ],
)
def test_disk_health(answer: str, expected: str, words: str) -> None:
    """What a disk says against itself warns, with its name; what it does not say is no fault."""
    disk = disk_health.parse(answer)
    facts = {
        "asked": True,
        "disks": {"/dev/x": disk} if disk else {},
        "counts": {},
        "kept": {},
        "boot_id": "b",
        "at_s": 9.0,
    }
    finding = disk_health.judge(facts, registry.get("disk_health").settings({}))
    assert finding.reason == expected
    assert words in finding.sentence
    assert finding.status.value in ("pass", "warn", "skip")


def test_new_media_errors_are_told() -> None:
    """One block lost since the last run is a word; those of years are none."""
    facts = {
        "asked": True,
        "disks": {"/dev/nvme0": disk_health.parse(nvme(media_errors=901))},
        "counts": {"/dev/nvme0 media_errors": 901},
        "kept": {"boot_id": "b", "at_s": 1.0, "counts": {"/dev/nvme0 media_errors": 900}},
        "boot_id": "b",
        "at_s": 9.0,
    }
    finding = disk_health.judge(facts, registry.get("disk_health").settings({}))
    assert finding.sentence == "/dev/nvme0 lost 1 blocks since the last run"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3)
)


@given(
    st.text(max_size=100) | st.dictionaries(st.sampled_from([*NVME, "ata_smart_attributes"]), VALUES).map(json.dumps)
)
def test_any_answer_is_read_without_an_error(text: str) -> None:
    """Not JSON, other types, absurd numbers."""
    disk_health.parse(text)


def _program(folder: Path, body: str) -> str:
    path = folder / "smartctl"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_a_program_that_hangs_or_fails_says_nothing(tmp_path: Path) -> None:
    """Its deadline ends it; an exit status of bits with a whole answer is an answer."""
    assert disk_health._ask(_program(tmp_path, "exec sleep 60"), "/dev/x", 0.2) is None
    assert disk_health._ask(str(tmp_path / "absent"), "/dev/x", 0.2) is None
    answer = disk_health._ask(_program(tmp_path, f"echo '{ata(3)}'; exit 64"), "/dev/x", 10.0)
    assert answer is not None
    assert answer["unreadable"] == 3


def test_the_program_is_told_nothing_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job's variables do not reach what root starts."""
    monkeypatch.setenv("LD_LIBRARY_PATH", "/tmp/evil")
    said = tmp_path / "said"
    disk_health._ask(_program(tmp_path, f'echo "$LD_LIBRARY_PATH|$LC_ALL|$5" > {said}'), "/dev/x", 10.0)
    assert said.read_text() == "|C|/dev/x\n"


def test_only_this_machine_s_disks_are_asked(tmp_path: Path) -> None:
    """A saved tree has none; without a disk or without the program nothing is asked."""
    check = registry.get("disk_health")
    for root in (tmp_path, Path("/")):
        facts = check.probe(Context("n1", "full", root), check.settings({}))
        if root == tmp_path or os.geteuid() != 0:
            assert not facts["asked"]
        assert check.judge(facts, check.settings({})).status.value in ("pass", "warn", "skip")
