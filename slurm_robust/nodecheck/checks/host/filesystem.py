"""Are the file systems there that jobs need: mounted, writable, with room, and answering?"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from slurm_robust.nodecheck.checks import Check, CheckError, Context, Facts, Finding, Option, Options, Status
from slurm_robust.nodecheck.engine.isolate import Task, run_all
from slurm_robust.nodecheck.sources import mounts, processes, small_files

_MIB = 1 << 20
_BROKEN = {errno.EROFS, errno.EIO, errno.ENOSPC, errno.ESTALE, errno.EDQUOT}
# The server of a FUSE mount is gone, or the file system below gave up: it is this node's fault, and stays.
_DEAD = {errno.ENOTCONN, errno.EIO, errno.ESHUTDOWN}
_SYSTEM = ("/", "/var", "/var/log", "/var/spool", "/var/spool/slurmd", "/var/tmp")
# Images, which are full by design, and file systems that are not on this node's own disk.
_IMAGES = ("squashfs", "erofs", "iso9660", "overlay", "rootfs", "ramfs")
_NO_ROOM_NEEDED = (*_IMAGES, "nfs", "lustre", "9p", "virtiofs", "fuse")
_KEYS = {"path": str, "type": str, "writable": bool, "min_free_mb": int, "min_free_inodes": int}


def validate(options: Options) -> list[Facts]:
    """Return the site's mounts as mappings, whether they were given so or as bare paths.

    Raises:
        CheckError: one has no path, a key that does not exist, or a value of the wrong type.
    """
    found = []
    for given in options["mounts"]:
        entry = {"path": given} if isinstance(given, str) else given
        if not isinstance(entry, dict) or not isinstance(entry.get("path"), str):
            raise CheckError(f"nodecheck.options.filesystem.mounts: {entry!r} names no path")
        for key, value in entry.items():
            if key not in _KEYS:
                why = f"there is no key {key} (there are: {', '.join(_KEYS)})"
                raise CheckError(f"nodecheck.options.filesystem.mounts: {entry['path']}: {why}")
            if type(value) is not _KEYS[key]:
                raise CheckError(f"nodecheck.options.filesystem.mounts: {entry['path']}: {key}: {value!r} does not fit")
        found.append(entry)
    return found


def _wanted(context: Context, options: Options) -> list[Facts]:
    """Return the places to look at: /tmp and our own state folder always, and the site's mounts."""
    wanted: list[Facts] = [
        {"path": "/tmp", "writable": True, "min_free_mb": options["tmp_min_free_mb"], "min_free_inodes": 100}
    ]
    if context.cache_dir is not None and context.real_root:
        folder = next((f for f in (context.cache_dir, *context.cache_dir.parents) if f.is_dir()), None)
        if folder is not None:
            wanted.append({"path": str(folder), "min_free_mb": 1, "min_free_inodes": 10})
    wanted += [{**entry, "mount": True} for entry in validate(options)]
    return wanted


def _fstab(context: Context) -> list[Facts]:
    """Return the mounts that /etc/fstab wants at boot (fstab(5))."""
    found = []
    for line in small_files.read_text(context.path("/etc/fstab")).splitlines():
        cells = line.split()
        if len(cells) < 3 or line.lstrip().startswith("#") or not cells[1].startswith("/"):
            continue
        chosen = set(cells[3].split(",")) if len(cells) > 3 else set()
        if cells[2] != "swap" and not chosen & {"noauto", "nofail", "bind", "rbind"}:
            path = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), cells[1])
            found.append({"path": path.rstrip("/") or "/", "mount": True})
    return found


def _system(table: list[mounts.Mount], options: Options) -> list[Facts]:
    """Return the node's own file systems: mounted from its disk, writable, and where the system writes."""
    room = {"warn_free_mb": options["system_warn_free_mb"], "warn_free_inodes": 1000}
    found = []
    for path in _SYSTEM:
        mount = mounts.at(table, path)
        if mount is None or mount.read_only or mount.super_read_only or mount.fstype.startswith(_NO_ROOM_NEEDED):
            continue
        found.append({"path": path, **room})
    return found


def _same_type(wanted: str, mounted: str | None) -> bool:
    """Return whether two types match: `nfs` is also `nfs4`, `fuse` also `fuse.sshfs`."""
    return mounted is not None and (
        mounted == wanted or (wanted, mounted) == ("nfs", "nfs4") or mounted.startswith(f"{wanted}.")
    )


def _look(path: str, *, write: bool) -> Facts:
    """Ask one file system; may block for ever."""
    try:
        info = os.statvfs(path)
    except OSError as error:
        return {"errno": error.errno, "error": str(error.strerror)}
    said: Facts = {
        # Where the path leads: a mount point may be named by a link.
        "real": os.path.realpath(path),
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


def _table(context: Context) -> list[mounts.Mount]:
    return mounts.parse(small_files.read_text(context.path("/proc/self/mountinfo"), 4 << 20))


def _mounted(place: Facts, table: list[mounts.Mount], context: Context) -> None:
    """Note the mount at the place, now that the look has woken an automount."""
    mount = mounts.at(table, place["path"])
    if mount is None and context.real_root and isinstance(place.get("real"), str):
        mount = mounts.at(table, place["real"])
    place.pop("real", None)
    if mount is not None:
        place |= {"mounted": mount.fstype, "read_only": mount.read_only or mount.super_read_only}
    elif place.get("mount") and place.get("error") != "timeout":
        place["missing"] = True


def probe(context: Context, options: Options) -> Facts:
    """Look at each path in a process of its own, so that one dead mount hides no other."""
    places = [dict(entry) for entry in _wanted(context, options)]
    if not context.real_root:
        # A saved tree has only the files that were saved.
        places = [place for place in places if place.get("mount") or context.path(place["path"]).exists()]
    if options["fstab"]:
        named = {place["path"] for place in places}
        places += [place for place in _fstab(context) if place["path"] not in named]
    named = {place["path"] for place in places}
    places += [place for place in _system(_table(context), options) if place["path"] not in named]
    tasks = {}
    for place in places:
        look = partial(_look, str(context.path(place["path"])), write=place.get("writable", False))
        tasks[place["path"]] = Task(look, context.deadline_s * 0.8)
    outcomes = run_all(tasks)
    table = _table(context)
    for place in places:
        outcome = outcomes[place["path"]]
        place.update(outcome.value or {"error": outcome.error})
        _mounted(place, table, context)
        if not place.get("mount") and ((_no_room(place) or _no_write(place)) if "error" not in place else None):
            place["private"] = processes.has_own_mounts(context)
            place["jobs"] = len(set(processes.job_managers(context).values()) - {context.job_id})
    return {"places": places}


_Fault = tuple[Status, str, str, str]


def _fault(place: Facts) -> _Fault | None:
    """Return what is wrong with one place: status, code, words, remedy; None if nothing is."""
    said = _not_there(place) or _no_answer(place)
    if said is not None or "error" in place:
        return said
    if place.get("writable") and place.get("read_only"):
        words = f"{place['path']} is mounted read-only"
        return Status.FAIL, "read_only", words, "look for disk errors in the kernel log; remount"
    return _no_room(place) or _no_write(place)


def _not_there(place: Facts) -> _Fault | None:
    path, mounted = place["path"], place.get("mounted")
    if place.get("missing"):
        return Status.FAIL, "not_mounted", f"{path} is not mounted", f"`mount {path}`; look at the file server"
    if mounted and place.get("type") and not _same_type(place["type"], mounted):
        words = f"{path} is a {mounted} mount, not {place['type']}"
        return Status.FAIL, "wrong_type", words, f"unmount what lies over {path}"
    return None


def _no_answer(place: Facts) -> _Fault | None:
    path = place["path"]
    if place.get("error") == "timeout":
        remedy = f"look at the server behind {path}; processes that touch it hang"
        return Status.UNKNOWN, "not_answering", f"{path} does not answer", remedy
    if place.get("errno") in _DEAD:
        return Status.FAIL, "dead", f"{path} is dead: {place['error']}", f"unmount and mount {path} anew"
    if "error" in place:
        return Status.UNKNOWN, "not_readable", f"{path}: {place['error']}", f"`stat -f {path}`"
    return None


def _full(place: Facts) -> Status:
    """Return the status of a full place: a warning if other jobs run on the node, which may fill it rightly."""
    others = place.get("jobs") or place.get("private")
    return Status.WARN if others and not place.get("mount") else Status.FAIL


def _no_room(place: Facts) -> _Fault | None:
    path, full = place["path"], _full(place)
    if place["free_mb"] < place.get("min_free_mb", 0):
        words = f"{path} has {place['free_mb']} MiB free, {place['min_free_mb']} are needed"
        return full, "no_space", words, f"clean up {path}"
    # Some file systems (btrfs, many network ones) count no inodes and say 0 of 0.
    if place["total_inodes"] and place["free_inodes"] < place.get("min_free_inodes", 0):
        return full, "no_inodes", f"{path} has {place['free_inodes']} inodes free", f"clean up {path}"
    if place["total_mb"] and place["free_mb"] < min(place.get("warn_free_mb", 0), place["total_mb"] // 10):
        return (
            Status.WARN,
            "filling",
            f"{path} has {place['free_mb']} MiB free",
            f"clean up {path}: logs, spool, images",
        )
    if place["total_inodes"] and place["free_inodes"] < min(
        place.get("warn_free_inodes", 0), place["total_inodes"] // 10
    ):
        return Status.WARN, "inodes_filling", f"{path} has {place['free_inodes']} inodes free", f"clean up {path}"
    return None


def _no_write(place: Facts) -> _Fault | None:
    path, code = place["path"], place["write_errno"]
    if code in _BROKEN:
        words = f"{path} cannot be written: {os.strerror(code)}"
        status = _full(place) if code in (errno.ENOSPC, errno.EDQUOT) else Status.FAIL
        return status, "not_writable", words, "look for disk errors in the kernel log"
    # Anything else (a squashed root, a file system without nameless files) says nothing about jobs.
    return None


def full_mounts(facts: Mapping[str, Any]) -> list[str]:
    """Return those of the site's mounts that have no room, from probed facts; other nodes may share the mounts."""
    places = [p for p in facts.get("places", ()) if p.get("mount")]
    return [p["path"] for p in places if (fault := _fault(p)) is not None and _lacks_room(fault, p)]


def _lacks_room(fault: _Fault, place: Facts) -> bool:
    no_write = fault[1] == "not_writable" and place["write_errno"] in (errno.ENOSPC, errno.EDQUOT)
    return no_write or fault[1] in ("no_space", "no_inodes")


def judge(facts: Facts, options: Options) -> Finding:
    """Fail for a place that is missing, read-only or full; a mount that does not answer is unknown.

    A dead file server affects all nodes at once: draining all of them would not help. A mount that is dead on this node
    alone (its FUSE daemon ended, the file system gave up) fails.
    """
    faults = [fault for place in facts["places"] if (fault := _fault(place)) is not None]
    if not facts["places"]:
        return Finding.skip("no_places", "a saved tree without file systems")
    if not faults:
        return Finding.passed("usable", f"{len(facts['places'])} file systems are usable", facts)
    faults.sort(key=lambda fault: (Status.FAIL, Status.UNKNOWN, Status.WARN).index(fault[0]))
    status, code, words, remedy = faults[0]
    words = "; ".join([words, *(fault[2] for fault in faults[1:] if fault[0] is status)])
    return Finding(status, code, words, remedy, facts)


def valid_while(facts: Facts, options: Options) -> list[tuple[str, ...]]:
    """Return the conditions that each place stays mounted, answers, has room, and is writable if it should be."""
    places = [
        f"{place['path']}|{place['device']}|{place.get('min_free_mb', 0)}|{'w' if place.get('writable') else ''}"
        for place in facts["places"]
        if "device" in place
    ]
    return [("answers", *places)]


check = Check(
    **Check.parts_of(__name__),
    reads="/proc/self/mountinfo, statvfs(2), a nameless file where it must be writable; each path in its own process",
    cost="one process and two calls a path, 2–5 ms",
    strikes=2,
    options={
        "mounts": Option(
            [],
            "list of {path, type, writable, min_free_mb, min_free_inodes} (or bare paths) that must be mounted",
            "ours: empty, only the site knows its mounts",
            items=(str, dict),
        ),
        "fstab": Option(False, "what /etc/fstab mounts at boot must be mounted too", "ours: in many images it is old"),
        "tmp_min_free_mb": Option(64, "MiB that /tmp must have free", "ours: less than any job's start needs"),
        "system_warn_free_mb": Option(
            512,
            f"MiB below which {', '.join(_SYSTEM)} warn, where they are mounts of the node's own disk; 0: never",
            "ours: an hour of a talkative log; never more than a tenth of the whole",
        ),
    },
)
