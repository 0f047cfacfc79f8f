"""Are the file systems there that jobs need: mounted, writable, with room, and answering?"""

from __future__ import annotations

import errno
import os
from functools import partial
from typing import Any

from slurm_robust.nodecheck import mounts
from slurm_robust.nodecheck.context import STAGES, Context, read_text
from slurm_robust.nodecheck.finding import Finding, Status
from slurm_robust.nodecheck.isolate import Task, run_all
from slurm_robust.nodecheck.registry import Check, CheckError, Facts, Option, Options

_MIB = 1 << 20
_BROKEN = {errno.EROFS, errno.EIO, errno.ENOSPC, errno.ESTALE, errno.EDQUOT}
_KEYS = {"path": str, "type": str, "writable": bool, "min_free_mb": int, "min_free_inodes": int}


def _wanted(context: Context, options: Options) -> list[dict[str, Any]]:
    """What is looked at: /tmp and our own state folder always, and the site's mounts."""
    wanted: list[dict[str, Any]] = [
        {"path": "/tmp", "writable": True, "min_free_mb": options["tmp_min_free_mb"], "min_free_inodes": 100}
    ]
    if context.cache_dir is not None and context.real_root:
        folder = next((f for f in (context.cache_dir, *context.cache_dir.parents) if f.is_dir()), None)
        if folder is not None:
            wanted.append({"path": str(folder), "min_free_mb": 1, "min_free_inodes": 10})
    for given in options["mounts"]:
        entry = {"path": given} if isinstance(given, str) else given
        if not isinstance(entry, dict) or not isinstance(entry.get("path"), str):
            raise CheckError(f"nodecheck.options.filesystem.mounts: {entry!r} names no path")
        for key, value in entry.items():
            if type(value) is not _KEYS.get(key):
                raise CheckError(f"nodecheck.options.filesystem.mounts: {entry['path']}: {key}: {value!r} does not fit")
        wanted.append({**entry, "mount": True})
    return wanted


def _look(path: str, *, write: bool) -> dict[str, Any]:
    """Ask one file system; may block for ever."""
    info = os.statvfs(path)
    said: dict[str, Any] = {
        "device": os.stat(path).st_dev,  # noqa: PTH116 (a plain text is at hand)
        "free_mb": info.f_bavail * info.f_frsize // _MIB,
        "total_mb": info.f_blocks * info.f_frsize // _MIB,
        "free_inodes": info.f_favail,
        "total_inodes": info.f_files,
        "write_errno": 0,
    }
    if write:
        try:
            # A file without a name: nothing to clean up, and no link of anybody's to follow.
            fd = os.open(path, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
            try:
                os.write(fd, b"srobust\n")
            finally:
                os.close(fd)
        except OSError as error:
            said["write_errno"] = error.errno
    return said


def probe(context: Context, options: Options) -> Facts:
    """Look at each path in a process of its own, so that one dead mount hides no other."""
    wanted = _wanted(context, options)
    table = mounts.parse(read_text(context.path("/proc/self/mountinfo")))
    places = []
    tasks = {}
    for entry in wanted:
        mount = mounts.at(table, entry["path"])
        place = dict(entry)
        if mount is not None:
            place |= {"mounted": mount.fstype, "read_only": mount.read_only or mount.super_read_only}
        elif entry.get("mount"):
            place["missing"] = True
        places.append(place)
        if not place.get("missing"):
            there = str(context.path(entry["path"]))
            look = partial(_look, there, write=entry.get("writable", False))
            tasks[entry["path"]] = Task(look, context.deadline_s * 0.8)
    outcomes = run_all(tasks)
    for place in places:
        outcome = outcomes.get(place["path"])
        if outcome is not None:
            place.update(outcome.value or {"error": outcome.error})
    return {"places": places}


def _fault(place: dict[str, Any]) -> tuple[Status, str, str, str] | None:
    """What is wrong with one place: status, code, words, remedy; None where nothing is."""
    path = place["path"]
    if place.get("missing"):
        return Status.FAIL, "not_mounted", f"{path} is not mounted", f"`mount {path}`; look at the file server"
    if place.get("type") and place["type"] != place.get("mounted"):
        words = f"{path} is a {place.get('mounted')} mount, not {place['type']}"
        return Status.FAIL, "wrong_type", words, f"unmount what lies over {path}"
    if place.get("error") == "timeout":
        remedy = f"look at the server behind {path}; processes that touch it hang"
        return Status.UNKNOWN, "not_answering", f"{path} does not answer", remedy
    if "error" in place:
        return Status.UNKNOWN, "not_readable", f"{path}: {place['error']}", f"`stat -f {path}`"
    if place.get("writable") and place.get("read_only"):
        return (
            Status.FAIL,
            "read_only",
            f"{path} is mounted read-only",
            "look for disk errors in the kernel log; remount",
        )
    return _no_room(place) or _no_write(place)


def _no_room(place: dict[str, Any]) -> tuple[Status, str, str, str] | None:
    path = place["path"]
    if place["free_mb"] < place.get("min_free_mb", 0):
        words = f"{path} has {place['free_mb']} MiB free, {place['min_free_mb']} are needed"
        return Status.FAIL, "no_space", words, f"clean up {path}"
    # Some file systems (btrfs, many network ones) count no inodes and say 0 of 0.
    if place["total_inodes"] and place["free_inodes"] < place.get("min_free_inodes", 0):
        return Status.FAIL, "no_inodes", f"{path} has {place['free_inodes']} inodes free", f"clean up {path}"
    return None


def _no_write(place: dict[str, Any]) -> tuple[Status, str, str, str] | None:
    path, code = place["path"], place["write_errno"]
    if code in _BROKEN:
        words = f"{path} cannot be written: {os.strerror(code)}"
        return Status.FAIL, "not_writable", words, "look for disk errors in the kernel log"
    # Anything else (a squashed root, a file system without nameless files) says nothing about jobs.
    return None


def judge(facts: Facts, options: Options) -> Finding:
    """Fails for what is missing, read-only or full; a mount that does not answer is unknown.

    A dead file server is everybody's at once: to drain every node that mounts it would help nobody.
    """
    faults = [fault for place in facts["places"] if (fault := _fault(place)) is not None]
    if not faults:
        return Finding(Status.PASS, "usable", f"{len(facts['places'])} file systems are usable", evidence=facts)
    faults.sort(key=lambda fault: fault[0] is not Status.FAIL)
    status, code, words, remedy = faults[0]
    words = "; ".join([words, *(fault[2] for fault in faults[1:] if fault[0] is status)])
    return Finding(status, code, words, remedy, facts)


def watch(facts: Facts, options: Options) -> list[tuple[str, ...]]:
    """Each place stays mounted as it is, answers, has room, and is writable where it should be."""
    places = [
        f"{place['path']}|{place['device']}|{place.get('min_free_mb', 0)}|{'w' if place.get('writable') else ''}"
        for place in facts["places"]
        if "device" in place
    ]
    return [("answers", *places)]


check = Check(
    name="filesystem",
    question="Are the file systems there that jobs need: mounted, writable, with room, and answering?",
    reads="/proc/self/mountinfo, statvfs(2) and a nameless file on each path, each in its own process",
    cost="one process and two calls a path, 2–5 ms",
    stages=STAGES,
    probe=probe,
    judge=judge,
    watch=watch,
    strikes=2,
    options={
        "mounts": Option(
            [],
            "list of {path, type, writable, min_free_mb, min_free_inodes} (or bare paths) that must be mounted",
            "ours: empty, only the site knows its mounts",
        ),
        "tmp_min_free_mb": Option(64, "MiB that /tmp must have free", "ours: less than any job's start needs"),
    },
)
