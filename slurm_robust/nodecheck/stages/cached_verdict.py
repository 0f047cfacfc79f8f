"""Leaves the fresh verdict that `quick` looks for, and takes it away.

A look of the prolog or of the periodic check that found nothing wrong leaves it. It says until when it holds, of which
boot, program and configuration it speaks, and what must not change meanwhile.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from slurm_robust.nodecheck.engine import check_state, registry
from slurm_robust.nodecheck.engine.choices import Choices
from slurm_robust.nodecheck.engine.context import Context
from slurm_robust.nodecheck.engine.counters import uptime_s
from slurm_robust.nodecheck.engine.finding import Report, Status
from slurm_robust.nodecheck.engine.registry import Check
from slurm_robust.nodecheck.stages import fast_path

Watch = tuple[str, ...]
_LINE_LOOKED_FOR = 1 << 16


def mark(path: Path) -> Watch:
    """Where the kernel log ends now; take it before the probes look.

    Returns:
        The beginning of a `log` watch, or a whole `shut` one where the log cannot be read now.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ("shut", str(path))
    try:
        info = os.fstat(fd)
        if stat.S_ISREG(info.st_mode):
            start = max(0, info.st_size - _LINE_LOOKED_FOR)
            # A line that is being written is looked at again as a whole.
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


def leave(
    report: Report, checks: Sequence[Check], choices: Choices, context: Context, config: str, *, log_end: Watch
) -> bool:
    """Write the verdict, or take away the one that is there.

    Args:
        report: What these checks found, before any of it was weighed.
        checks: Those that ran.
        choices: What the site chose.
        context: What was looked at.
        config: The configuration's path, as the scripts name it.
        log_end: What `mark` gave.

    Returns:
        True where it was written.
    """
    folder = context.cache_dir
    if folder is None:
        return False
    words = [word for check in checks for word in check.log_words]
    if any(r.finding.status in (Status.FAIL, Status.UNKNOWN) for r in report.results) or log_end == ("never",):
        check_state.drop(folder, fast_path.NAME)
        return False
    watches = [watch for result in report.results for watch in result.watches]
    if words and log_end:
        watches.append((*log_end, *words) if log_end[0] == "log" else log_end)
    now_s = uptime_s()
    again = {check.name: choices.options.get(check.name, {}) for check in checks if check.again}
    for check in _unseen(checks, choices):
        if check.instead:
            watches += check.instead
        else:
            again[check.name] = choices.options.get(check.name, {})
    lines = [
        fast_path.FORMAT,
        f"node\t{context.node}",
        f"root\t{context.root}",
        f"boot\t{fast_path.boot_id(str(context.root))}",
        f"config\t{config}\t{fast_path.identity(config)}",
        f"made\t{now_s:.3f}",
        f"until\t{now_s + choices.fresh_s:.3f}",
        f"checks\t{len(checks)}",
        f"again\t{json.dumps(again) if again else ''}",
        *("\t".join(("watch", *watch)) for watch in watches),
        "end",
    ]
    plain = all("\n" not in line for line in lines) and all("\t" not in part for watch in watches for part in watch)
    if choices.fresh_s > 0 and plain:
        return check_state.put(folder, fast_path.NAME, "\n".join(lines) + "\n")
    check_state.drop(folder, fast_path.NAME)
    return False


def _unseen(checks: Sequence[Check], choices: Choices) -> list[Check]:
    """Checks of the prolog that did not run in this look."""
    return registry.select("prolog", (), {*choices.disable, *(check.name for check in checks)})
