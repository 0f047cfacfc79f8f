"""Is local scratch full of what finished jobs left?"""

from __future__ import annotations

import os
from collections.abc import Iterator

from slurm_robust.nodecheck.checks import Check, CheckError, Context, Facts, Finding, Option, Options
from slurm_robust.nodecheck.sources import processes

_MAX_ENTRIES = 20_000
_MAX_DEPTH = 3
_MIB = 1 << 20


def _entries(top: str) -> Iterator[os.stat_result]:
    """Yield the contents of a folder, a few levels deep, on one file system.

    Each folder is opened from its parent's descriptor, so that a user's link is never followed, even if it was put
    there meanwhile.
    """
    device = -1
    if not os.path.isdir(top):  # noqa: PTH112 (fwalk raises for what walk passes over)
        return
    for base, folders, files, fd in os.fwalk(top, follow_symlinks=False):
        device = os.fstat(fd).st_dev if device < 0 else device
        for name in (*folders, *files):
            try:
                info = os.stat(name, dir_fd=fd, follow_symlinks=False)
            except OSError:
                continue
            if info.st_dev == device:
                yield info
            elif name in folders:
                folders.remove(name)
        if base[len(top) :].count("/") >= _MAX_DEPTH - 1:
            folders.clear()


def validate(options: Options) -> None:
    """Refuse a folder that is not an absolute path."""
    for place in options["folders"]:
        if not isinstance(place, str) or not place.startswith("/"):
            raise CheckError(f"nodecheck.options.scratch.folders: {place!r} is not an absolute path")


def probe(context: Context, options: Options) -> Facts:
    """Space held by users who run nothing here, by uid."""
    running = processes.owners(context)
    held: dict[int, list[int]] = {}
    seen = 0
    validate(options)
    for place in options["folders"]:
        for info in _entries(str(context.path(place))):
            seen += 1
            if seen > _MAX_ENTRIES:
                break
            if info.st_uid not in running:
                files_bytes = held.setdefault(info.st_uid, [0, 0])
                files_bytes[0] += 1
                files_bytes[1] += info.st_blocks * 512
    users = sorted(held, key=lambda uid: -held[uid][1])[:20]
    return {
        "users": [{"uid": uid, "files": held[uid][0], "mb": held[uid][1] // _MIB} for uid in users],
        "mb": sum(size for _, size in held.values()) // _MIB,
        "seen": seen,
    }


def judge(facts: Facts, options: Options) -> Finding:
    """Warn at most: the files may be wanted by a user's next job."""
    if facts["mb"] >= options["warn_leftover_mb"] > 0:
        first = facts["users"][0]
        whose = f"uid {first['uid']}: {first['mb']}"
        sentence = f"{facts['mb']} MiB of local scratch belong to users who run nothing here ({whose})"
        remedy = "clean up, or let the epilog or job_container/tmpfs do it"
        return Finding.warn("scratch_leftovers", sentence, remedy, facts)
    return Finding.passed("scratch_clean", f"{facts['mb']} MiB of leftovers on local scratch", facts)


check = Check(
    **Check.parts_of(__name__),
    reads="owner and size of what lies up to three levels below the named folders, at most 20,000 entries",
    cost="one stat a file, 1–50 ms; in a process of its own",
    options={
        "folders": Option(["/tmp", "/var/tmp"], "folders that are looked into", "ours: jobs write there unasked"),
        "warn_leftover_mb": Option(
            51_200, "MiB of users who run nothing here from which it warns; 0: never", "ours: a model's checkpoint"
        ),
    },
)
