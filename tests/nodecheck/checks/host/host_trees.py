"""Trees of small files that stand for a node, looked at with `--root`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slurm_robust.nodecheck.engine import registry, runner
from slurm_robust.nodecheck.engine.context import Context
from slurm_robust.nodecheck.engine.finding import Finding

BOOT_ID = "/proc/sys/kernel/random/boot_id"


def plant(root: Path, files: Mapping[str, str | None]) -> Path:
    """Write the files; None takes one away."""
    for name, text in {BOOT_ID: "boot-1\n", **files}.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        if text is None:
            path.unlink()
        else:
            path.write_text(text)
    return root


def look(name: str, root: Path, **options: Any) -> Finding:
    """One look of one check at such a tree; it remembers what it saw beside it."""
    context = Context("n1", "full", root, root / "kmsg", root / "cache")
    finding = runner.run([registry.get(name)], context, {name: options}, 10.0).results[0].finding
    assert finding.reason not in ("probe_error", "judge_error"), finding.sentence
    assert len(finding.sentence) > 3
    assert finding.remedy or finding.status.value not in ("warn", "fail", "unknown")
    return finding


def said(name: str, root: Path, **options: Any) -> tuple[str, str]:
    """Status and reason of such a look."""
    finding = look(name, root, **options)
    return finding.status.value, finding.reason
