"""Reads the kernel log once for all of its checks; each check continues where its last run ended."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from slurm_robust.nodecheck.engine import check_state
from slurm_robust.nodecheck.engine.context import Context
from slurm_robust.nodecheck.engine.finding import Finding, Status
from slurm_robust.nodecheck.sources import small_files

if TYPE_CHECKING:
    from slurm_robust.nodecheck.sources import kmsg

LANE = "kernel_log"
MOST_LINES = 10_000
"""The most lines with one word that are counted: an exact number is not needed, and the count must not outlast a
check's deadline."""


class News(NamedTuple):
    """The news for one check.

    Attributes:
        log: The records, and the end of the log.
        boot_id: The kernel's name of this boot.
        kept: The values that the check kept in this boot; empty if it kept nothing.
        cursor: The position from which on these records are new.
    """

    log: kmsg.LogReading
    boot_id: str
    kept: Mapping[str, Any]
    cursor: Mapping[str, Any]


def news(
    context: Context, name: str, wanted: Callable[[str], object], words: Iterable[str] = (), most: int = 0
) -> News:
    """Return the wanted records since this check's last look that counted; arguments as `kmsg.KernelLog.since`."""
    from slurm_robust.nodecheck.sources import kmsg  # noqa: PLC0415 (only the lane's own process pays for it)

    boot_id = context.boot_id()
    kept = check_state.load(context.cache_dir, name)
    same_boot = kept.get("boot_id") == boot_id
    cursor = kept.get("cursor")
    cursor = cursor if isinstance(cursor, dict) else {}
    if not same_boot:
        # The kernel counts its records anew; a plain file goes on.
        cursor = {key: value for key, value in cursor.items() if key != "seq"}
    source = context.once("kernel_log", lambda: kmsg.load(context.kmsg))
    log = source.since(wanted, cursor, booted_at_s(context), words, most)
    return News(log, boot_id, kept if same_boot else {}, cursor)


def counts(context: Context) -> bool:
    """Return whether records count as seen; what a health check sees, the next health check sees again."""
    return context.stage in ("prolog", "epilog")


def booted_at_s(context: Context) -> float | None:
    """Return when this boot began, if the log is this machine's own; None for a saved log."""
    if not context.real_root or context.cache_dir is None:
        return None
    match = re.search(r"^btime (\d+)$", small_files.read_text(context.path("/proc/stat")), re.MULTILINE)
    return float(match[1]) if match else None


def times(count: int, *, flooded: bool) -> str:
    """Return `×3`, or `×10000 or more` for a count that was not finished."""
    return f"×{count} or more" if flooded else f"×{count}"


def unreadable(facts: Mapping[str, Any], *, needed: bool) -> Finding:
    """Return the finding for a log that cannot be read: unknown if the log is needed, else skip."""
    status = Status.UNKNOWN if needed else Status.SKIP
    if facts["errno"] in (errno.EPERM, errno.EACCES):
        remedy = "run it as root, or name another log in nodecheck.kmsg" if needed else ""
        return Finding(status, "no_permission", f"no permission to read the kernel log: {facts['error']}", remedy)
    remedy = "name the kernel log in nodecheck.kmsg" if needed else ""
    return Finding(status, "no_kernel_log", f"no kernel log to read: {facts['error']}", remedy)
