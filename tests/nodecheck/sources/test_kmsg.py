from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.nodecheck.sources import kmsg

XID = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, name=train, GPU has fallen off the bus."
ANY_XID = re.compile("NVRM: Xid")


@pytest.mark.parametrize("device", [False, True])
def test_of_a_flood_the_newest_lines_are_read_and_the_rest_is_said(device: bool) -> None:
    """A word's lines beyond the limit are left out, the oldest first; those of other words are all read."""
    texts = ["rare 0", *[f"storm {n}" for n in range(50)], "rare 1"]
    if device:
        log = kmsg.KernelLog("".join(f"4,{n},{n},-;{text}\0" for n, text in enumerate(texts)).encode())
    else:
        log = kmsg.KernelLog("".join(f"{text}\n" for text in texts).encode(), name="1:2")
    reading = log.since(lambda text: True, {}, words=("storm", "rare"), most=10)
    assert [record.text for record in reading.records] == ["rare 0", *[f"storm {n}" for n in range(40, 50)], "rare 1"]
    assert reading.capped == {"storm"}
    assert reading.cursor == log.since(lambda text: True, {}).cursor
    assert log.since(lambda text: True, {}, words=("rare",), most=2).capped == frozenset()


def test_an_earlier_boot_is_not_even_offered() -> None:
    """Whoever counts in `wanted` counts only lines of this boot."""
    log = kmsg.KernelLog(b"2025-02-23T16:24:18Z n kernel: old\n2025-02-24T16:24:18Z n kernel: new\n", name="1:2")
    offered: list[str] = []
    log.since(offered.append, {}, booted_at_s=1740400000.0)
    assert offered == ["new"]


@pytest.mark.parametrize(
    ("line", "seq", "uptime_s"),
    [
        (f"4,812,99000000,-;{XID}", 812, 99.0),
        (f"4,812,99000000,c,caller=T12;{XID}", 812, 99.0),
        (f"4,812,99000000,-;{XID}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:9b:00.0", 812, 99.0),
        (f"[   99.000000] {XID}", None, 99.0),
        (f"kern  :warn  : [   99.000000] {XID}", None, 99.0),
        (f"<4>[   99.000000] {XID}", None, 99.0),
        (f"[Sun Feb 23 16:24:18 2025] {XID}", None, None),
        (f"Feb 23 16:24:18 n17 kernel: {XID}", None, None),
        (f"Feb  3 16:24:18 n17 kernel: [   99.000000] {XID}", None, 99.0),
        (f"2025-02-23T16:24:18+0100 n17 kernel: {XID}", None, None),
        (f"2025-02-23T16:24:18.123456+01:00 n17.cluster kernel: {XID}", None, None),
        (f"2025-02-23T16:24:18,123456+01:00 {XID}", None, None),
        (XID, None, None),
    ],
)
def test_every_usual_shape_gives_the_same_message(line: str, seq: int | None, uptime_s: float | None) -> None:
    """dmesg, dmesg -T, dmesg -x, dmesg --time-format iso, journalctl, syslog and /dev/kmsg are all read."""
    record = kmsg.parse(line)
    assert record is not None
    assert (record.text, record.seq, record.uptime_s) == (XID, seq, uptime_s)


@pytest.mark.parametrize(
    "line",
    [
        f"Feb 23 16:24:18 n17 alice: {XID}",
        f"Feb 23 16:24:18 n17 train[4711]: {XID}",
        f"2025-02-23T16:24:18+0100 n17 python[12]: {XID}",
        " SUBSYSTEM=pci",
        "",
        "   ",
    ],
)
def test_what_the_kernel_did_not_say_is_no_record(line: str) -> None:
    """Any user may write an XID into syslog with logger(1); only the tag `kernel` counts."""
    assert kmsg.parse(line) is None


def test_a_message_that_only_quotes_an_xid_does_not_match_at_its_beginning() -> None:
    """A process may call itself anything; its name stands within the kernel's words, not before them."""
    record = kmsg.parse(f"[  1.0] traps: {XID}")
    assert record is not None
    assert not ANY_XID.match(record.text)


def test_a_zone_is_taken_into_account() -> None:
    """The same instant in two zones is the same instant."""
    one = kmsg.parse(f"2025-02-23T16:24:18+0100 n kernel: {XID}")
    two = kmsg.parse(f"2025-02-23T15:24:18Z n kernel: {XID}")
    assert one is not None
    assert two is not None
    assert one.wall_s == two.wall_s == 1740324258.0


@given(st.text(max_size=300))
def test_any_text_is_read_without_an_error(text: str) -> None:
    """The parser is total: whatever stands in a log, it gives a record or none."""
    record = kmsg.parse(text)
    assert record is None or isinstance(record.text, str)


STAMPS = st.one_of(
    st.from_regex(r"\A[0-9]{1,3},[0-9]{1,9},[0-9]{1,12},-;\Z"),
    st.from_regex(r"\A\[ {0,4}[0-9]{1,8}\.[0-9]{6}\] \Z"),
    st.from_regex(r"\A\[(Sun|Mon) (Jan|Feb|Dec) [0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2} [0-9]{4}\] \Z"),
    st.from_regex(r"\A[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}[+-][0-9]{4} node kernel: \Z"),
)


@given(STAMPS)
def test_a_stamp_never_hides_a_message(stamp: str) -> None:
    """Also with a date that does not exist (month 13, hour 99) the message itself is read."""
    record = kmsg.parse(stamp + XID)
    assert record is not None
    assert record.text == XID


@given(st.binary(max_size=4000))
def test_any_bytes_in_a_file_are_read_without_an_error(data: bytes) -> None:
    """Not UTF-8, NULs, no newline at all: a log is given, with a cursor inside the file."""
    fd = os.memfd_create("log")
    try:
        os.write(fd, data)
        log = kmsg.load(Path(f"/proc/self/fd/{fd}")).since(re.compile("").match, {})
    finally:
        os.close(fd)
    assert log.error == ""
    assert 0 <= log.cursor["at"] <= len(data)


def test_only_this_boot_counts(tmp_path: Path) -> None:
    """What a file holds of earlier boots is passed over, whichever way a new boot shows."""
    log = tmp_path / "kern.log"
    for border in ("[    0.000000] Linux version 6.1.0", "-- Reboot --", "[    0.100000] systemd[1]: hello"):
        log.write_text(f"[ 9000.000000] {XID}\n{border}\n[   12.000000] NVRM: Xid (PCI:0000:9b:00): 31, new\n")
        texts = [record.text for record in kmsg.load(log).since(ANY_XID.match, {}).records]
        assert texts == ["NVRM: Xid (PCI:0000:9b:00): 31, new"], border


def test_a_date_before_the_boot_is_not_of_this_boot(tmp_path: Path) -> None:
    """A syslog file names dates: with the time of the boot known, older lines do not count."""
    log = tmp_path / "kern.log"
    log.write_text(f"2025-02-23T15:24:18Z n kernel: {XID}\n2025-02-24T15:24:18Z n kernel: {XID} again\n")
    texts = [record.text for record in kmsg.load(log).since(ANY_XID.match, {}, booted_at_s=1740324258.0 + 3600).records]
    assert texts == [f"{XID} again"]


def test_the_cursor_goes_on_where_it_stood(tmp_path: Path) -> None:
    """Nothing is seen twice, nothing is missed, also when the file is rotated."""
    log = tmp_path / "log"
    log.write_text(f"{XID} 1\n")
    first = kmsg.load(log).since(ANY_XID.match, {})
    with log.open("a") as file:
        file.write(f"{XID} 2\n")
    second = kmsg.load(log).since(ANY_XID.match, first.cursor)
    assert [record.text[-1] for record in (*first.records, *second.records)] == ["1", "2"]
    log.write_text(f"{XID}3\n")
    third = kmsg.load(log).since(ANY_XID.match, second.cursor)
    assert [record.text[-1] for record in third.records] == ["3"]


def test_a_line_that_grew_over_the_cursor_is_new_as_a_whole(tmp_path: Path) -> None:
    """A log that was written anew in its place, a little longer."""
    log = tmp_path / "log"
    log.write_text("first\nquiet\n")
    cursor = kmsg.load(log).since(ANY_XID.match, {}).cursor
    log.write_text(f"first\n{XID}\n")
    assert [record.text for record in kmsg.load(log).since(ANY_XID.match, cursor).records] == [XID]
    assert [record.text for record in kmsg.load(log).since(ANY_XID.match, cursor, None, ["Xid"]).records] == [XID]


def test_a_line_still_being_written_is_read_again(tmp_path: Path) -> None:
    """A last line without its newline counts now and once more when it is whole."""
    log = tmp_path / "log"
    log.write_text(f"{XID}\nNVRM: Xid (PCI:0000:9b:00): 4")
    first = kmsg.load(log).since(ANY_XID.match, {})
    assert len(first.records) == 2
    with log.open("a") as file:
        file.write("5, whole\n")
    assert [r.text for r in kmsg.load(log).since(ANY_XID.match, first.cursor).records] == [
        "NVRM: Xid (PCI:0000:9b:00): 45, whole"
    ]


@pytest.mark.parametrize("kind", ["missing", "folder", "pipe"])
def test_what_cannot_be_read_is_said_and_never_waited_for(tmp_path: Path, kind: str) -> None:
    """No log, a folder, a pipe without a writer: an error in words, at once."""
    path = tmp_path / "log"
    if kind == "folder":
        path.mkdir()
    if kind == "pipe":
        os.mkfifo(path)
    log = kmsg.load(path).since(ANY_XID.match, {})
    assert str(path) in log.error
    assert log.errno


LINES = st.lists(
    st.one_of(
        st.builds(
            "[{:5d}.000000] {}".format, st.integers(0, 400), st.sampled_from([XID, "usb 1-1", "Linux version 6"])
        ),
        st.builds(
            "{:d},{:d},{:d},-;{}".format, st.just(4), st.integers(0, 99), st.just(5), st.sampled_from([XID, "a"])
        ),
        st.sampled_from(
            ["-- Reboot --", "Feb 23 16:24:18 n17 kernel: NVRM: Xid", "", " KEY=NVRM: Xid", "[  +9.1] NVRM: Xid"]
        ),
    ),
    max_size=12,
)


@given(LINES, st.integers(0, 800), st.booleans())
def test_the_words_spare_work_and_change_nothing(lines: list[str], at: int, ended: bool) -> None:
    """With or without the words that each wanted line has, the same records are found, from any cursor on."""
    data = ("\n".join(lines) + "\n" * ended).encode()
    for name, data_ in (("1:2", data), ("", data.replace(b"\n", b"\0") + b"\0")):
        source = kmsg.KernelLog(data_, 0, name)
        cursor = {"file": name, "at": at, "seq": at // 10}
        one = source.since(ANY_XID.match, cursor)
        assert source.since(ANY_XID.match, cursor, None, ["NVRM: Xid", "never"]) == one


def test_the_device_s_records_are_read_once_for_several() -> None:
    """Each takes what it wants from its own cursor on, and learns where the device ends."""
    source = kmsg.KernelLog(b"".join(b"4,%d,5,-;NVRM: Xid %d\n KEY=x\n\0" % (n, n) for n in range(7)))
    log = source.since(ANY_XID.match, {"seq": 4}, None, ["NVRM"])
    assert [record.text for record in log.records] == ["NVRM: Xid 5", "NVRM: Xid 6"]
    assert log.cursor == {"seq": 6}
    assert source.since(re.compile("no").match, {}, None, ["no"]) == kmsg.LogReading((), {"seq": 6})
    assert kmsg.KernelLog().since(ANY_XID.match, {"seq": 9}).cursor == {"seq": 9}
