"""What many tests need: waiting for something with a deadline, and whether Slurm is here."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest

if TYPE_CHECKING:
    from slurm_robust.devcluster.cluster import DevCluster

T = TypeVar("T")


LEAST_S = 60.0
"""What does come is waited for so long at least: how long it took says more of the machine than of the code."""


def wait_until(predicate: Callable[[], T], timeout_s: float, what: str, *, poll_s: float | None = None) -> T:
    """Poll until `predicate` gives something true, and return that.

    Without `poll_s` it looks again after 0.05 s, and ever more seldom, up to 0.4 s: most looks start a command.

    Raises:
        AssertionError: it did not in `timeout_s`, a minute at least; says what was awaited and what was seen last.
    """
    timeout_s = max(timeout_s, LEAST_S)
    deadline_s = time.monotonic() + timeout_s
    pause_s = poll_s or 0.05
    while True:
        seen = predicate()
        if seen:
            return seen
        if time.monotonic() > deadline_s:
            raise AssertionError(f"not in {timeout_s:g} s: {what} (last seen: {seen!r})")
        time.sleep(pause_s)
        if poll_s is None:
            pause_s = min(1.15 * pause_s, 0.4)


@contextlib.contextmanager
def mounted_tmpfs(folder: Path, size: str, **options: object) -> Iterator[Path]:
    """A new file system of its own in this folder, of `size` (tmpfs: `3m`); the test is skipped where none can be."""
    folder.mkdir()
    given = ",".join(f"{key}={value}" for key, value in {"size": size, **options}.items())
    mount = ["mount", "-t", "tmpfs", "-o", given, "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("needs root, to mount a small file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def quick_torch(*folders: str | Path) -> str:
    """PYTHONPATH of these folders for ranks that need no torch.compile: they start and end in less than half the time.

    With SROBUST_WHOLE_TORCH in the environment, all ranks start the whole of it.
    """
    quick = [] if os.environ.get("SROBUST_WHOLE_TORCH") else [Path(__file__).with_name("quick_torch")]
    return os.pathsep.join(str(folder) for folder in (*quick, *folders) if folder)


def slurm_required() -> bool:
    """True if a missing Slurm is a failure and no reason to skip."""
    return bool(os.environ.get("CI") or os.environ.get("SROBUST_REQUIRE_SLURM"))


def slurm_words(cluster: DevCluster) -> str:
    """For failures: jobs, nodes and their reasons, and the end of the controller's log; never raises."""
    asked = (["squeue", "-o", "%i %T %r %N"], ["sinfo", "-N", "-o", "%N %T %E"], ["squeue", "--steps"])
    words: list[str] = []
    try:
        words += [cluster.run(command, check=False).stdout for command in asked]
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        words.append(str(error))
    log = cluster.layout.log / "slurmctld.log"
    words += log.read_text(errors="replace").splitlines()[-40:] if log.exists() else []
    return "\n".join(words)
