"""The kernel log as it grows: device and file, floods, gaps, garbage, and what is told after a restart."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from watch_helpers import XID_79, at, kernel_lines, record

from slurm_robust.nodewatch.kmsg_follower import KmsgFollower
from slurm_robust.nodewatch.ring import Seen
from slurm_robust.nodewatch.source import SourceBrokenError


class Device:
    """Stands for /dev/kmsg: one record a read, and nothing to read is `try again`."""

    def __init__(self) -> None:
        self.kernel, self._reader = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._reader.setblocking(False)
        self.kernel.setblocking(False)

    def close(self) -> None:
        """It goes away."""
        self.kernel.close()
        self._reader.close()

    def opened(self, _: Path) -> int:
        """As opening the device anew."""
        return os.dup(self._reader.fileno())

    def log(self, *records: str | bytes) -> None:
        """The kernel writes."""
        for text in records:
            self.kernel.send(text if isinstance(text, bytes) else text.encode() + b"\n")


def follow(path: Path, cursor: dict[str, object] | None = None, device: Device | None = None) -> KmsgFollower:
    """A follower that has begun."""
    more = {"opened": device.opened} if device else {}
    made = KmsgFollower(path, kernel_lines(path.parent), cursor or {}, **more)
    made.open(at(100))
    return made


def kinds(found: list[Seen]) -> list[tuple[str, str]]:
    """What was found, and how urgent it is."""
    return [(seen.finding.kind, seen.finding.urgency) for seen in found]


@pytest.fixture
def device() -> Iterator[Device]:
    """A device without records."""
    made = Device()
    yield made
    made.close()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A plain file that holds the beginning of a boot."""
    path = tmp_path / "kmsg"
    path.write_text(record(0, 0, "Linux version 6.1") + "\n")
    return path


def add(path: Path, *texts: str | bytes) -> None:
    """The file grows by whole lines."""
    with path.open("ab") as file:
        for text in texts:
            file.write((text if isinstance(text, bytes) else text.encode()) + b"\n")


def drain(follower: KmsgFollower) -> list[Seen]:
    """All that is there, piece by piece."""
    found: list[Seen] = []
    while True:
        found += follower.tick(at(100))
        if follower.due_s > 100:
            return found


def test_a_line_is_a_finding_with_its_own_time(log: Path) -> None:
    """Uptime as the kernel wrote it, as a time of day; and the code."""
    follower = follow(log)
    assert follower.tick(at(100)) == []
    add(log, record(1, 90.5, XID_79))
    (seen,) = follower.tick(at(100))
    assert (seen.finding.code, seen.finding.urgency, seen.finding.at_s) == (79, "now", at(90.5).wall_s)


@pytest.mark.parametrize("line", [record(1, 12.0, XID_79), f"2026-09-21T00:00:00+0000 n1 kernel: {XID_79}"])
def test_a_line_that_has_just_come_is_no_older_than_the_reading_before(log: Path, line: str) -> None:
    """The kernel's clock stands still in some machines that are asleep, and a file has whatever was written into it."""
    follower = follow(log)
    follower.tick(at(100))
    follower.tick(at(2000))
    add(log, line)
    (seen,) = follower.tick(at(2001))
    assert at(1990).wall_s <= seen.finding.at_s <= at(2001).wall_s


def test_a_device_that_is_read_to_its_end_has_no_older_lines(device: Device, tmp_path: Path) -> None:
    """What was there before the first reading has its own time; a file's line of next year has come now."""
    follower = follow(tmp_path / "kmsg", device=device)
    device.log(record(1, 12.0, XID_79))
    (old,) = follower.read(at(100))
    device.log(record(2, 13.0, XID_79.replace("9b", "1b")))
    (new,) = follower.read(at(2000))
    assert (old.finding.at_s, new.finding.at_s) == (at(12).wall_s, at(90).wall_s)


def test_a_time_that_is_still_to_come_is_now(log: Path) -> None:
    """A saved log's line may have any date."""
    follower = follow(log)
    add(log, f"2031-01-01T00:00:00+0000 n1 kernel: {XID_79}")
    assert [seen.finding.at_s for seen in follower.tick(at(100))] == [at(100).wall_s]


def test_gpus_are_numbered_by_the_bus(log: Path) -> None:
    """As NVML numbers them; an address that the driver does not have means the whole node."""
    for bus in ("0000:1b:00.0", "0000:9b:00.0"):
        (log.parent / "proc/driver/nvidia/gpus" / bus).mkdir(parents=True)
    follower = follow(log)
    add(log, record(1, 90, XID_79), record(2, 91, XID_79.replace("9b", "cc")))
    assert [seen.finding.gpus for seen in drain(follower)] == [(1,), ()]


def test_a_gpu_that_has_gone_keeps_its_number(log: Path) -> None:
    """Its line may come after its files are gone, and others must not be taken for it."""
    for bus in ("0000:1b:00.0", "0000:9b:00.0", "0000:cc:00.0"):
        (log.parent / "proc/driver/nvidia/gpus" / bus).mkdir(parents=True)
    follower = follow(log)
    add(log, record(1, 90, XID_79))
    drain(follower)
    (log.parent / "proc/driver/nvidia/gpus/0000:9b:00.0").rmdir()
    add(log, record(2, 91, XID_79.replace("9b", "cc")), record(3, 92, XID_79.replace("79, pid=1", "62, pid=1")))
    assert [seen.finding.gpus for seen in drain(follower)] == [(2,), (1,)]


def test_after_a_restart_only_what_is_newer(log: Path) -> None:
    """By the cursor; a file that was replaced is read from its beginning."""
    follower = follow(log)
    add(log, record(1, 90, XID_79))
    assert len(drain(follower)) == 1
    again = follow(log, follower.cursor)
    assert drain(again) == []
    add(log, record(2, 91, "nvme nvme0: Disabling device after reset failure: -19"))
    assert kinds(drain(again)) == [("disk_lost", "now")]
    log.rename(log.with_suffix(".1"))
    add(log, record(3, 92, XID_79))
    with pytest.raises(SourceBrokenError):
        drain(again)
    assert kinds(drain(follow(log, again.cursor))) == [("xid", "now")]


def test_a_line_still_being_written_waits(log: Path) -> None:
    """Half an XID is none."""
    follower = follow(log)
    with log.open("a") as file:
        file.write(record(1, 90, XID_79)[:40])
        file.flush()
        assert drain(follower) == []
        file.write(record(1, 90, XID_79)[40:] + "\n")
    assert kinds(drain(follower)) == [("xid", "now")]


def test_garbage_between_lines_hides_none(log: Path) -> None:
    """Binary zeros, no UTF-8, numbers of any size, a megabyte without an end of line."""
    follower = follow(log)
    rubbish = [b"\0" * 5000, b"\xff\xfe\x00NVRM: Xid", b"4,99999999999999999999999,90000000,-;x", b"9" * 1_500_000]
    add(log, *rubbish, record(1, 90, XID_79), *rubbish)
    assert kinds(drain(follower)) == [("xid", "now")]


def test_the_device_is_followed_and_its_gaps_are_said(tmp_path: Path, device: Device) -> None:
    """A number that was left out is a record that nobody read."""
    follower = follow(tmp_path / "kmsg", device=device)
    device.log(record(10, 80, "one"), record(11, 81, XID_79))
    assert kinds(follower.read(at(100))) == [("xid", "now")], "no gap before the first"
    device.log(record(15, 82, "two"), b"rubbish", b"\0" * 100)
    (gap,) = follower.read(at(100))
    assert (gap.finding.kind, gap.finding.urgency, gap.times) == ("kmsg_gap", "note", 3)
    assert follower.cursor == {"seq": 15}


def test_a_device_that_is_opened_again_repeats_nothing(tmp_path: Path, device: Device) -> None:
    """It shows its oldest record first, at each open."""
    device.log(record(10, 80, XID_79), record(11, 81, "one"), record(12, 82, XID_79.replace("9b", "cc")))
    found = follow(tmp_path / "kmsg", {"seq": 11}, device).read(at(100))
    assert [seen.finding.text.endswith("GPU 0000:cc:00") for seen in found] == [True]


def test_a_flood_hides_no_fatal_line(log: Path) -> None:
    """Forty thousand lines of one error: few findings, and the one among them that matters."""
    follower = follow(log)
    noise = "".join(
        record(n, 90, f"EDAC MC0: 1 CE memory read error on x (channel:0 page:0x{n:x})") + "\n" for n in range(20_000)
    )
    with log.open("a") as file:
        file.write(noise + record(20_000, 90, XID_79) + "\n" + noise)
    found = kinds(drain(follower))
    assert ("xid", "now") in found
    assert ("memory_corrected", "at_next_checkpoint") in found
    assert len(found) < 40


def test_what_is_corrected_is_told_only_when_it_comes_often(log: Path) -> None:
    """The catalogue's own bound, counted over pieces."""
    follower = follow(log)
    for number in range(23):
        add(log, record(number, 90, "EDAC MC0: 1 CE memory read error on x (channel:0 page:0x1f)"))
        assert drain(follower) == []
    add(log, record(24, 90, "EDAC MC0: 1 CE memory read error on x (channel:0 page:0x1f)"))
    assert kinds(drain(follower)) == [("memory_corrected", "at_next_checkpoint")]


def test_recovery_is_a_note(log: Path) -> None:
    """A server that answers again, and a reset that the driver no longer wants."""
    follower = follow(log)
    add(log, record(1, 90, "nfs: server fs1 not responding, still trying"))
    assert kinds(drain(follower)) == [("nfs_server", "note")]
    withdrawn = "154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
    add(log, record(2, 91, "nfs: server fs1 OK"), record(3, 92, f"NVRM: Xid (PCI:0000:9b:00): {withdrawn}"))
    assert sorted(kinds(drain(follower))) == [("nfs_server", "note"), ("xid", "note")]


def test_neither_file_nor_device(tmp_path: Path) -> None:
    """A pipe would block, a folder has no lines; one that does not exist yet is tried again."""
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(SourceBrokenError):
        follow(tmp_path / "fifo")
    with pytest.raises(OSError, match="No such file"):
        follow(tmp_path / "nothing")
