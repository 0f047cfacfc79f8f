"""Is /dev/shm there, large enough, and not full of what finished jobs left?"""

from __future__ import annotations

import os

from slurm_robust.nodecheck.checks import Check, Context, Facts, Finding, Option, Options
from slurm_robust.nodecheck.sources import processes

_MIB = 1 << 20
_MAX_FILES = 20_000


def probe(context: Context, options: Options) -> Facts:
    """Size and fill of /dev/shm, and files whose owners run nothing here."""
    folder = context.path("/dev/shm")
    if not folder.is_dir():
        return {"there": False, "saved": not context.real_root}
    info = os.statvfs(folder)
    owners: dict[int, list[int]] = {}
    seen = 0
    # Each folder is opened from its parent's descriptor: no link of a user's is followed.
    for _, _, names, fd in os.fwalk(folder, follow_symlinks=False):
        for name in names:
            seen += 1
            try:
                entry = os.stat(name, dir_fd=fd, follow_symlinks=False)
            except OSError:
                continue
            count_bytes = owners.setdefault(entry.st_uid, [0, 0])
            count_bytes[0] += 1
            count_bytes[1] += entry.st_blocks * 512
        if seen > _MAX_FILES:
            break
    running = processes.owners(context)
    orphans = {uid: found for uid, found in owners.items() if uid != 0 and uid not in running}
    return {
        "there": True,
        "device": folder.stat().st_dev,
        "total_mb": info.f_blocks * info.f_frsize // _MIB,
        "free_mb": info.f_bavail * info.f_frsize // _MIB,
        "orphan_uids": sorted(orphans),
        "orphan_files": sum(found[0] for found in orphans.values()),
        "orphan_mb": sum(found[1] for found in orphans.values()) // _MIB,
    }


def judge(facts: Facts, options: Options) -> Finding:
    """Fails only below the sizes that the site asks for; fullness and leftovers warn."""
    if not facts["there"]:
        if facts["saved"]:
            return Finding.skip("no_shm", "a saved tree without /dev/shm")
        remedy = "mount a tmpfs on /dev/shm: PyTorch and NCCL need it"
        return Finding.warn("no_shm", "/dev/shm is missing", remedy)
    return _judge(facts, options)


def _judge(facts: Facts, options: Options) -> Finding:
    total, free = facts["total_mb"], facts["free_mb"]
    if total < options["min_size_mb"]:
        sentence = f"/dev/shm has {total} MiB, {options['min_size_mb']} are expected"
        return Finding.fail("shm_small", sentence, "remount it: `mount -o remount,size=… /dev/shm`", facts)
    if free < options["min_free_mb"]:
        sentence = f"/dev/shm has {free} of {total} MiB free, {options['min_free_mb']} are needed"
        return Finding.fail("shm_full", sentence, "remove what finished jobs left there", facts)
    # tmpfs without a limit says 0 of 0.
    if total and free < total * (1 - options["warn_used_share"]):
        sentence = f"/dev/shm has {free} of {total} MiB free"
        return Finding.warn("shm_filling", sentence, "look at `du -a /dev/shm`", facts)
    if facts["orphan_mb"] >= options["warn_leftover_mb"]:
        sentence = f"{facts['orphan_mb']} MiB in /dev/shm belong to users who run nothing here"
        return Finding.warn("shm_leftovers", sentence, "remove what finished jobs left there", facts)
    return Finding.passed("shm_usable", f"/dev/shm has {free} of {total} MiB free", facts)


def valid_while(facts: Facts, options: Options) -> list[tuple[str, ...]]:
    """Return the condition that /dev/shm stays, with the needed room."""
    return [("answers", f"/dev/shm|{facts['device']}|{options['min_free_mb']}|")] if facts["there"] else []


check = Check(
    **Check.parts_of(__name__),
    reads="statvfs(2) and the files of /dev/shm, the owners of /proc/* (and /proc/*/stat)",
    cost="one stat a file and a process, 1–5 ms",
    strikes=2,
    lane="files",
    options={
        "min_size_mb": Option(0, "MiB that /dev/shm must have; 0: any", "ours: containers often have 64 MiB"),
        "min_free_mb": Option(0, "MiB that must be free; 0: any", "ours: a neighbour's job may use it rightly"),
        "warn_used_share": Option(0.9, "share in use above which it warns", "ours"),
        "warn_leftover_mb": Option(1024, "MiB of leftovers above which it warns", "ours: a rank's NCCL and loaders"),
    },
)
