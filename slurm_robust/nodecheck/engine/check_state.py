"""Keeps what a check wants to know at its next run: one small JSON file for each check, in `nodecheck.cache_dir`.

Files are written through the descriptor of the opened folder: a link that takes the folder's place meanwhile leads
nowhere.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slurm_robust.nodecheck import state_folder
from slurm_robust.nodecheck.engine import counters
from slurm_robust.nodecheck.engine.context import Context
from slurm_robust.wire import whole_file


def load(folder: Path | None, name: str) -> dict[str, Any]:
    """Return what was saved; empty if nothing was, or if it cannot be trusted or read."""
    if folder is None:
        return {}
    try:
        value = json.loads(state_folder.read_own(str(folder), f"{name}.json"))
    except (OSError, state_folder.UntrustedState, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def since(context: Context, name: str) -> dict[str, Any]:
    """Return the facts that a probe needs to compare with earlier runs.

    Returns:
        `boot_id` of this boot, `at_s` in seconds since boot, and `kept`: the values that the check `name` has saved.
    """
    return {"boot_id": context.boot_id(), "at_s": counters.uptime_s(), "kept": load(context.cache_dir, name)}


def of_this_boot(facts: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what the check has kept in this boot, from facts with those of `since`; empty if it has kept nothing."""
    kept: Mapping[str, Any] = facts["kept"]
    return kept if kept.get("boot_id") == facts["boot_id"] else {}


def best(facts: Mapping[str, Any]) -> dict[str, float]:
    """Return the best value of each device in this boot, from the kept `best`; non-numbers are ignored."""
    found = of_this_boot(facts).get("best")
    values = found if isinstance(found, dict) else {}
    return {name: value for name, value in values.items() if isinstance(value, (int, float))}


def save(folder: Path, name: str, value: dict[str, Any]) -> bool:
    """Write it atomically; False if that was not possible (no permission, disk full)."""
    return write(folder, f"{name}.json", json.dumps(value, separators=(",", ":")))


def write(folder: Path, file_name: str, text: str) -> bool:
    """Do as `save`, for any text."""
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        inside = state_folder.open_own(str(folder))
    except (OSError, state_folder.UntrustedState):
        return False
    try:
        whole_file.write(file_name, text.encode("utf-8", "replace"), inside=inside, mode=0o644)
    except OSError:
        return False
    finally:
        os.close(inside)
    return True


def remove(folder: Path, file_name: str) -> None:
    """Remove a file, if it exists and we may."""
    try:
        inside = state_folder.open_own(str(folder))
    except (OSError, state_folder.UntrustedState):
        return
    with contextlib.suppress(OSError):
        os.unlink(file_name, dir_fd=inside)
    os.close(inside)
