"""Reads the mount table, `/proc/self/mountinfo` (format: proc_pid_mountinfo(5))."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_NETWORK = "nfs nfs4 lustre gpfs beegfs wekafs ceph cifs smb3 9p virtiofs panfs afs orangefs pvfs2 glusterfs fuse"
_REMOTE = frozenset(_NETWORK.split())
_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class Mount:
    """One mount.

    Attributes:
        read_only: Whether this mount is read-only (a read-only bind mount of a writable file system counts).
        super_read_only: Whether the file system itself is read-only, as after an error.
        device: Its `major:minor`, which names a disk independent of the source's name.
    """

    path: str
    fstype: str
    source: str
    read_only: bool
    super_read_only: bool
    device: str = ""


def parse(text: str) -> list[Mount]:
    """Read the table; lines that are not of its shape are passed over."""
    table = []
    for line in text.splitlines():
        left, separator, right = line.partition(" - ")
        ours, theirs = left.split(" "), right.split(" ")
        if not separator or len(ours) < 6 or len(theirs) < 3:
            continue
        table.append(
            Mount(
                path=_plain(ours[4]),
                fstype=theirs[0],
                source=_plain(theirs[1]),
                read_only="ro" in ours[5].split(","),
                super_read_only=not {"ro", "emergency_ro"}.isdisjoint(theirs[2].split(",")),
                device=ours[2],
            )
        )
    return table


def at(table: Sequence[Mount], path: str) -> Mount | None:
    """Return the mount whose mount point is exactly `path`; the top one if there are several."""
    wanted = path.rstrip("/") or "/"
    return next((mount for mount in reversed(table) if mount.path == wanted), None)


def over(table: Sequence[Mount], path: str) -> Mount | None:
    """Return the mount in which a path lies."""
    inside = [mount for mount in table if mount.path == "/" or f"{path}/".startswith(f"{mount.path}/")]
    longest = max((len(mount.path) for mount in inside), default=0)
    return next((mount for mount in reversed(inside) if len(mount.path) == longest), None)


def is_remote(mount: Mount) -> bool:
    """True for a file system that several machines may share."""
    return mount.fstype.partition(".")[0] in _REMOTE


def _plain(text: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)
