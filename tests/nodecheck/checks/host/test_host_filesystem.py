from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurm_robust.nodecheck.checks.host import filesystem
from slurm_robust.nodecheck.engine import registry, runner
from slurm_robust.nodecheck.engine.context import Context
from slurm_robust.nodecheck.sources import mounts

ROOM = {"free_mb": 9000, "total_mb": 10000, "free_inodes": 9000, "total_inodes": 10000, "write_errno": 0}
SITE = {"path": "/scratch", "mount": True, "mounted": "lustre", "read_only": False, **ROOM}
TMP = {"path": "/tmp", "writable": True, "min_free_mb": 64, "min_free_inodes": 100, **ROOM}
SYSTEM = {"path": "/var", "warn_free_mb": 512, "warn_free_inodes": 1000, "mounted": "ext4", "read_only": False, **ROOM}


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (SITE, ("pass", "usable")),
        ({**SITE, "type": "nfs", "mounted": "nfs4"}, ("pass", "usable")),
        ({**SITE, "type": "fuse", "mounted": "fuse.weka"}, ("pass", "usable")),
        ({**SITE, "type": "nfs", "mounted": "autofs"}, ("fail", "wrong_type")),
        ({"path": "/s", "mount": True, "missing": True, "errno": errno.ENOENT, "error": "x"}, ("fail", "not_mounted")),
        # The daemon of a FUSE mount ended, or the disk below it: this node alone, and for good.
        ({"path": "/s", "mount": True, "mounted": "fuse.x", "errno": errno.ENOTCONN, "error": "x"}, ("fail", "dead")),
        ({"path": "/s", "mount": True, "mounted": "xfs", "errno": errno.EIO, "error": "x"}, ("fail", "dead")),
        # A stale handle is often every node's at once.
        (
            {"path": "/s", "mount": True, "mounted": "nfs4", "errno": errno.ESTALE, "error": "x"},
            ("unknown", "not_readable"),
        ),
        ({"path": "/s", "mount": True, "mounted": "nfs4", "error": "timeout"}, ("unknown", "not_answering")),
        (TMP, ("pass", "usable")),
        ({**TMP, "free_mb": 3}, ("fail", "no_space")),
        ({**TMP, "free_mb": 3, "jobs": 1}, ("warn", "no_space")),  # a neighbour's job fills it, and will end
        ({**TMP, "free_inodes": 3, "jobs": 1}, ("warn", "no_inodes")),
        ({**TMP, "write_errno": errno.ENOSPC}, ("fail", "not_writable")),
        ({**TMP, "write_errno": errno.ENOSPC, "jobs": 1}, ("warn", "not_writable")),
        ({**TMP, "write_errno": errno.EROFS, "jobs": 1}, ("fail", "not_writable")),
        ({**SITE, "min_free_mb": 10_000, "jobs": 1}, ("fail", "no_space")),  # what the site asks for holds
        (SYSTEM, ("pass", "usable")),
        ({**SYSTEM, "free_mb": 100}, ("warn", "filling")),
        ({**SYSTEM, "free_mb": 100, "total_mb": 400}, ("pass", "usable")),  # a small one is never empty
        ({**SYSTEM, "free_inodes": 5}, ("warn", "inodes_filling")),
        ({**SYSTEM, "free_mb": 0, "total_mb": 0}, ("pass", "usable")),  # no limit
    ],
)
def test_places(place: dict[str, Any], expected: tuple[str, str]) -> None:
    """What is this node's own fault fails, a server's is unknown, the system's own room only warns."""
    check = registry.get("filesystem")
    finding = check.judge({"places": [place]}, check.settings({}))
    assert (finding.status.value, finding.reason) == expected


def mounted(*lines: str) -> Callable[[Context], list[mounts.Mount]]:
    """A mount table."""
    table = mounts.parse("\n".join(lines))
    return lambda context: table


def looked_at(monkeypatch: pytest.MonkeyPatch, table: Callable[[Context], list[mounts.Mount]], *sites: Any) -> Any:
    """What the check says of these mounts where the table is so."""
    monkeypatch.setattr(filesystem, "_table", table)
    options = {"filesystem": {"mounts": list(sites)}}
    return runner.run([filesystem.check], Context("n1"), options, 5.0).results[0].finding


def test_an_image_that_is_full_by_design_is_no_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A root of squashfs, overlay, NFS or read-only ext4 needs no room; the same one of ext4 is looked at."""
    kinds = ["squashfs ro", "overlay rw", "nfs4 rw", "ext4 ro", "ext4 rw"]
    seen = []
    for kind in kinds:
        fstype, mode = kind.split()
        finding = looked_at(monkeypatch, mounted(f"1 1 8:1 / / {mode} - {fstype} /dev/sda1 {mode}"))
        seen.append("/" in [place["path"] for place in finding.evidence["places"]])
    assert seen == [False, False, False, False, True]


def test_an_automount_is_woken_before_it_is_judged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What `autofs` stands for is mounted by the look at it; only then its type is read."""
    before = f"1 1 0:5 / {tmp_path} rw - autofs systemd-1 rw"
    after = f"2 1 0:6 / {tmp_path} rw - nfs4 server:/x rw"
    tables = iter([mounted(before), mounted(before, after)])

    def table(context: Context) -> list[mounts.Mount]:
        return next(tables)(context)

    finding = looked_at(monkeypatch, table, {"path": str(tmp_path), "type": "nfs", "writable": True})
    assert (finding.status.value, finding.reason) == ("pass", "usable")


def test_a_mount_point_may_be_named_by_a_link(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`/scratch -> /mnt/fs1/scratch` is mounted where the place it leads to is."""
    there, link = tmp_path / "there", tmp_path / "link"
    there.mkdir()
    link.symlink_to(there)
    assert looked_at(monkeypatch, mounted(f"2 1 0:6 / {there} rw - lustre x rw"), str(link)).reason == "usable"
    assert looked_at(monkeypatch, mounted(f"2 1 0:6 / {tmp_path} rw - lustre x rw"), str(link)).reason == "not_mounted"


def test_a_bind_mount_that_may_not_be_written_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A read-only bind mount of a writable file system is read-only for jobs."""
    table = mounted(f"2 1 8:1 /data {tmp_path} ro - ext4 /dev/sda1 rw")
    assert looked_at(monkeypatch, table, {"path": str(tmp_path), "writable": True}).reason == "read_only"
    assert looked_at(monkeypatch, table, str(tmp_path)).reason == "usable"


def test_a_dead_mount_is_said_by_its_errno(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`Transport endpoint is not connected` of one mount hides no other."""
    real = os.statvfs

    def statvfs(path: str) -> os.statvfs_result:
        if path == str(tmp_path):
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")
        return real(path)

    monkeypatch.setattr(os, "statvfs", statvfs)
    finding = looked_at(monkeypatch, mounted(f"2 1 0:9 / {tmp_path} rw - fuse.x x rw"), str(tmp_path))
    assert (finding.status.value, finding.reason) == ("fail", "dead")
    assert str(tmp_path) in finding.sentence


def test_what_fstab_mounts_at_boot_can_be_asked_for(tmp_path: Path) -> None:
    """Not what it mounts on demand or may lack, not swap; only where the site wants it."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text("1 1 8:1 / / rw - ext4 /dev/sda1 rw\n")
    (tmp_path / "etc/fstab").write_text(
        "# /dev/sdz1 /old ext4 defaults 0 0\nUUID=1 / ext4 defaults 0 1\nUUID=2 none swap sw 0 0\n"
        "nas:/home /home nfs4 noauto,x-systemd.automount 0 0\nUUID=3 /opt ext4 nofail 0 2\n\xff\x00\n"
        "/dev/md0 /my\\040scratch xfs defaults 0 2\n"
    )
    context = Context("n1", "full", tmp_path)
    for wanted, expected in ((False, "usable"), (True, "not_mounted")):
        finding = runner.run([filesystem.check], context, {"filesystem": {"fstab": wanted}}, 5.0).results[0].finding
        assert finding.reason == expected
    assert finding.sentence == "/my scratch is not mounted"
