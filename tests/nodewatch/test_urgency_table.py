"""The table of urgencies: nothing that fails a node is a note, each row has its source, and the page is in step."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest

from slurm_robust.marks.node_findings import URGENCIES
from slurm_robust.nodecheck.catalogue import kernel_patterns, sxids, xids
from slurm_robust.nodecheck.catalogue.xids import XidGrade
from slurm_robust.nodecheck.checks.network import nic_log
from slurm_robust.nodecheck.engine import registry
from slurm_robust.nodecheck.engine.finding import Status
from slurm_robust.nodewatch import explain, urgency

PAGE = Path(__file__).parents[2] / "docs" / "nodewatch.md"


def test_every_failing_code_is_more_than_a_note() -> None:
    """Those of the catalogue, and every other code that a site or a line's own words make a failure."""
    codes = [*xids.CATALOGUE, 999]
    assert [c for c in codes if urgency.of_xid(c, XidGrade.FAIL, "GPU Reset Required").name == "note"] == []
    assert [c for c in sxids.CATALOGUE if urgency.of_sxid(c, XidGrade.FAIL).name == "note"] == []
    kinds = [*kernel_patterns.KINDS, *nic_log._KINDS]
    assert [k for k in kinds if urgency.of_kernel(k, Status.FAIL, about_gpu=True).name == "note"] == []
    assert [n for n in registry.NAMES if urgency.of_check(n, "anything", Status.FAIL).name == "note"] == []


def test_every_row_has_an_urgency_and_a_source() -> None:
    """And names a code, a kind or a check that there is."""
    xid_rules = {entry.code: entry.urgency for entry in xids.CATALOGUE.values() if entry.urgency}
    tables = (xid_rules, urgency.SXIDS, urgency.KERNEL, urgency.CHECKS, urgency.REASONS)
    rules = list(chain.from_iterable(table.values() for table in tables))
    assert all(rule.name in URGENCIES and len(rule.source) > 20 for rule in rules)
    assert set(urgency.KERNEL) <= {*kernel_patterns.KINDS, *nic_log._KINDS}
    assert set(urgency.CHECKS) <= set(registry.NAMES)


@pytest.mark.parametrize(
    ("code", "message", "expected"),
    [
        (79, "GPU has fallen off the bus.", "now"),
        (31, "MMU Fault", "note"),
        (63, "Row Remapper: New row marked for remapping", "at_next_checkpoint"),
        (64, "Row Remapper: Error", "now"),
        (94, "Contained: SM", "at_next_checkpoint"),
        (154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", "now"),
        (154, "GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)", "at_next_checkpoint"),
        (154, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", "note"),
        (145, "RLW_REMAP Nonfatal XC0 i0 Link 00 (0x1 0x2)", "note"),
        (145, "RLW_REMAP Fatal XC0 i0 Link 00 (0x1 0x2)", "now"),
    ],
)
def test_what_a_line_makes_of_a_job(code: int, message: str, expected: str) -> None:
    """By the catalogue's own grade of this very line."""
    assert urgency.of_xid(code, xids.grade(code, message), message).name == expected


def test_a_driver_that_is_loaded_is_no_fault_of_all_gpus() -> None:
    """`None of the NVIDIA devices were initialized` names no GPU: it concerns nobody who runs already."""
    assert urgency.of_kernel("gpu_driver", Status.WARN, about_gpu=True).name == "now"
    assert urgency.of_kernel("gpu_driver", Status.WARN).name == "note"


def test_a_warning_is_a_note_unless_it_is_named() -> None:
    """A pending remap waits for the checkpoint, a lost link for the next one, a full disk for a person."""
    assert urgency.of_check("gpu_rows", "remap_pending", Status.WARN).name == "at_next_checkpoint"
    assert urgency.of_check("rdma_ports", "port_down", Status.WARN).name == "if_repeated"
    assert urgency.of_check("filesystem", "few_free", Status.WARN).name == "note"


def test_the_page_is_what_the_table_says() -> None:
    """docs/nodewatch.md ends with what `nodewatch.explain` writes."""
    assert PAGE.read_text().endswith(explain.as_markdown()), (
        "python -m slurm_robust.nodewatch.explain docs/nodewatch.md"
    )
