"""A storm of one error: counted up to a limit and in time, and what else was said is still found."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_robust.nodecheck.catalogue import kernel_patterns
from slurm_robust.nodecheck.checks.host import kernel_log
from slurm_robust.nodecheck.engine import runner
from slurm_robust.nodecheck.engine.context import Context
from slurm_robust.nodecheck.sources import shared_kernel_log

ENOUGH_S = 60.0
"""On a machine that is busy with other tests; alone it takes a second."""
RARE = "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:4711]\n"
STORMS = {
    "pcie_corrected": "pcieport 0000:00:01.0: AER: Corrected error received: 0000:01:00.0\n",
    "nic_firmware": "mlx5_core 0000:3b:00.0: poll_health:821:(pid 0): Fatal error 1 detected\n",
    "limit_reached": "VFS: file-max limit 9223372 reached\n",
}


def node(root: Path, log: str) -> Context:
    """A node with this kernel log."""
    (root / "kmsg").write_text(log)
    return Context("n1", "prolog", root, root / "kmsg", root / "cache")


@pytest.mark.parametrize("kind", STORMS)
def test_a_storm_of_one_error_warns_in_time(tmp_path: Path, kind: str) -> None:
    """8 MiB of one line warn, whatever number the site waits for; the line before them is told, too."""
    context = node(tmp_path, RARE + STORMS[kind] * (((8 << 20) - len(RARE)) // len(STORMS[kind])))
    options = {"kernel_log": {"often": {kind: 1_000_000}}}
    finding = runner.run([kernel_log.check], context, options, ENOUGH_S).results[0].finding
    assert set(finding.evidence["seen"]) == {kind, "stall"}
    assert f"{kind} ×{shared_kernel_log.MOST_LINES} or more" in finding.sentence
    assert finding.status.value == "warn"
    assert runner.run([kernel_log.check], context, {}, ENOUGH_S).results[0].finding.reason == "quiet"


def test_fewer_lines_than_the_limit_are_counted_exactly(tmp_path: Path) -> None:
    """The site's number holds for them."""
    context = node(tmp_path, STORMS["pcie_corrected"] * shared_kernel_log.MOST_LINES)
    facts = kernel_log.probe(context, kernel_log.check.settings({}))
    assert (facts["seen"]["pcie_corrected"]["count"], facts["flooded"]) == (shared_kernel_log.MOST_LINES, [])
    options = kernel_log.check.settings({"often": {"pcie_corrected": 1_000_000}})
    assert kernel_log.judge(facts, options).reason == "quiet"


def test_each_line_is_sorted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood is not gone through twice, and a server that answered after it is taken back."""
    sorted_lines: list[str] = []
    sort = kernel_patterns.sort

    def noted(text: str) -> tuple[str, str, bool] | None:
        sorted_lines.append(text)
        return sort(text)

    monkeypatch.setattr(kernel_patterns, "sort", noted)
    lost = "nfs: server nas1.cluster not responding, still trying\n"
    context = node(tmp_path, lost * 20_000 + "nfs: server nas1.cluster OK\n")
    assert kernel_log.probe(context, kernel_log.check.settings({}))["seen"] == {}
    assert len(sorted_lines) == shared_kernel_log.MOST_LINES
