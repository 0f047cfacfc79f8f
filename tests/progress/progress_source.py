"""The file under test, and processes that use it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

from slurm_robust import progress as original

SOURCE = Path(original.__file__)


def own_record(progress: ModuleType) -> original.ProgressRecord:
    """What a reader sees of this process."""
    record: original.ProgressRecord | None = progress.read(progress._page.fd)
    assert record is not None
    return record


def run(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own; a warning there is an error."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, **env},
    )
