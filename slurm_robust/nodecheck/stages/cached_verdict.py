"""Writes the cached verdict that `fast_path` reads, and removes it.

A prolog or health check that found nothing wrong writes it: until when it is valid, for which boot, version and
configuration, and which conditions must still hold.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from slurm_robust.nodecheck import state_folder
from slurm_robust.nodecheck.engine import check_state, registry
from slurm_robust.nodecheck.engine.choices import Choices
from slurm_robust.nodecheck.engine.context import Context
from slurm_robust.nodecheck.engine.counters import uptime_s
from slurm_robust.nodecheck.engine.finding import NodeReport, Status
from slurm_robust.nodecheck.engine.registry import Check

Condition = tuple[str, ...]
_MAX_LINE_BYTES = 1 << 16


def log_position(path: Path) -> Condition:
    """Return where the kernel log ends now; call this before the probes run.

    Returns:
        The beginning of a `log` condition, or a `shut` condition if the log cannot be read now.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ("shut", str(path))
    try:
        info = os.fstat(fd)
        if stat.S_ISREG(info.st_mode):
            start = max(0, info.st_size - _MAX_LINE_BYTES)
            # A line that is still being written is read again as a whole.
            end = start + os.pread(fd, info.st_size - start, start).rfind(b"\n") + 1
            return ("log", str(path), f"{info.st_dev}:{info.st_ino}", str(end))
        last = -1
        try:
            while record := os.read(fd, 8192):
                last = int(record.split(b",", 2)[1])
        except BlockingIOError:
            pass
        return ("log", str(path), "", str(last))
    except (OSError, ValueError, IndexError):
        return ("never",)
    finally:
        os.close(fd)


def save(
    report: NodeReport, checks: Sequence[Check], choices: Choices, context: Context, config: str, *, log_end: Condition
) -> bool:
    """Write the verdict, or remove the existing one.

    `report` is what these checks found, before it was weighed with earlier runs; `config` the configuration's path, as
    the scripts name it; `log_end` from `log_position`.

    Returns:
        True if it was written.
    """
    folder = context.cache_dir
    if folder is None:
        return False
    words = [word for check in checks for word in check.invalidating_words]
    if any(r.finding.status in (Status.FAIL, Status.UNKNOWN) for r in report.results) or log_end == ("never",):
        check_state.remove(folder, state_folder.VERDICT)
        return False
    conditions = [condition for result in report.results for condition in result.conditions]
    if words and log_end:
        conditions.append((*log_end, *words) if log_end[0] == "log" else log_end)
    now_s = uptime_s()
    again = {check.name: choices.options.get(check.name, {}) for check in checks if check.always}
    for check in _not_run(checks, choices):
        if check.if_not_run:
            conditions += check.if_not_run
        else:
            again[check.name] = choices.options.get(check.name, {})
    lines = [
        state_folder.FORMAT,
        f"node\t{context.node}",
        f"root\t{context.root}",
        f"boot\t{state_folder.boot_id(str(context.root))}",
        f"config\t{config}\t{state_folder.identity(config)}",
        f"made\t{now_s!r}",
        f"until\t{now_s + choices.fresh_s!r}",
        f"checks\t{len(checks)}",
        f"again\t{json.dumps(again) if again else ''}",
        *("\t".join(("watch", *condition)) for condition in conditions),
        "end",
    ]
    valid = all("\n" not in line for line in lines) and all(
        "\t" not in part for condition in conditions for part in condition
    )
    if choices.fresh_s > 0 and valid:
        return check_state.write(folder, state_folder.VERDICT, "\n".join(lines) + "\n")
    check_state.remove(folder, state_folder.VERDICT)
    return False


def _not_run(checks: Sequence[Check], choices: Choices) -> list[Check]:
    """Checks of the prolog that did not run this time."""
    return registry.select("prolog", (), {*choices.disable, *(check.name for check in checks)})
