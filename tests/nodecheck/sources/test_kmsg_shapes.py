"""Every shape in which a kernel log is saved, whole and garbled."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.nodecheck.sources import kmsg
from slurm_robust.nodecheck.sources.kmsg_line import parse

BOOT_S = 1_740_000_000.0
XID = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, name=train, GPU has fallen off the bus."
ANYTHING = re.compile("")


def clock(form: str) -> Callable[[float, str], str]:
    """A shape whose stamp is a date in UTC."""
    return lambda uptime_s, text: time.strftime(form, time.gmtime(BOOT_S + uptime_s)) + text


SHAPES: dict[str, Callable[[float, str], str]] = {
    "/dev/kmsg": lambda s, text: f"4,{int(s)},{int(s * 1e6)},-;{text}",
    "/dev/kmsg, with the caller": lambda s, text: f"4,{int(s)},{int(s * 1e6)},c,caller=T12;{text}",
    "dmesg": lambda s, text: f"[{s:12.6f}] {text}",
    "dmesg -r": lambda s, text: f"<4>[{s:12.6f}] {text}",
    "dmesg -x": lambda s, text: f"kern  :warn  : [{s:12.6f}] {text}",
    "dmesg -d": lambda s, text: f"[{s:12.6f} <    0.000012>] {text}",
    "dmesg -e": lambda s, text: f"[  +{s:.6f}] {text}",
    "dmesg -e, a new minute": clock("[%b%d %H:%M] "),
    "dmesg -t -x": lambda s, text: text,
    "dmesg -T": clock("[%a %b %e %H:%M:%S %Y] "),
    "dmesg -T -x": clock("kern  :warn  : [%a %b %e %H:%M:%S %Y] "),
    "dmesg --time-format iso": clock("%Y-%m-%dT%H:%M:%S,123456+00:00 "),
    "journalctl -o short": clock("%b %d %H:%M:%S n17 kernel: "),
    "journalctl -o short-precise": clock("%b %d %H:%M:%S.123456 n17 kernel: "),
    "journalctl -o short-iso": clock("%Y-%m-%dT%H:%M:%S+0000 n17 kernel: "),
    "journalctl -o short-iso-precise": clock("%Y-%m-%dT%H:%M:%S.123456+0000 n17 kernel: "),
    "journalctl -o short-full": clock("%a %Y-%m-%d %H:%M:%S UTC n17 kernel: "),
    "journalctl -o short-monotonic": lambda s, text: f"[{s:12.6f}] n17 kernel: {text}",
    "journalctl -o short-unix": lambda s, text: f"{BOOT_S + s:.6f} n17 kernel: {text}",
    "syslog": lambda s, text: clock("%b %e %H:%M:%S n17.cluster kernel: ")(s, f"[{s:12.6f}] {text}"),
    "syslog with priority": clock("<4>%b %e %H:%M:%S n17 kernel: "),
    "syslog of RFC 5424": clock("<4>1 %Y-%m-%dT%H:%M:%S.123456Z n17 kernel - - - "),
}
MESSAGES = (
    XID,
    "Out of memory: Killed process 4711 (python) total-vm:1kB",
    "mlx5_core 0000:3b:00.0: poll_health:821:(pid 0): Fatal error 1 detected",
    "EXT4-fs (sda1): Remounting filesystem read-only",
    "a: b: c [1.0] <6>",
)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_gives_the_same_messages(shape: str, tmp_path: Path) -> None:
    """Whichever way the log was saved, the messages are those that the kernel wrote, in their order."""
    log = tmp_path / "log"
    log.write_text("".join(f"{SHAPES[shape](100.0 + n, text)}\n" for n, text in enumerate(MESSAGES)))
    read = kmsg.load(log).since(ANYTHING.match, {})
    assert tuple(record.text for record in read.records) == MESSAGES


@given(st.sampled_from(sorted(SHAPES)), st.floats(0, 4e7), st.sampled_from(MESSAGES))
def test_no_time_hides_a_message(shape: str, uptime_s: float, text: str) -> None:
    """From the first second to a year after boot, each shape's stamp is taken off whole."""
    record = parse(SHAPES[shape](uptime_s, text))
    assert record is not None
    assert record.text == text


@given(st.sampled_from(sorted(SHAPES)), st.text("".join(map(chr, range(32, 127))), min_size=1))
def test_no_message_is_torn(shape: str, words: str) -> None:
    """Whatever the kernel says behind a word of its own stays as it is."""
    text = f"NVRM: {words}"
    record = parse(SHAPES[shape](12.5, text))
    assert record is not None
    assert record.text == text


GARBAGE = st.one_of(
    st.binary(max_size=80),
    st.sampled_from(sorted(SHAPES)).flatmap(
        lambda shape: st.tuples(st.integers(0, 60), st.binary(max_size=6)).map(
            lambda cut: SHAPES[shape](1.5, XID).encode()[: cut[0]] + cut[1]
        )
    ),
).map(lambda data: data.replace(b"\n", b"").replace(b"\r", b""))


@given(st.lists(GARBAGE, max_size=6), st.sampled_from(sorted(SHAPES)), st.integers(0, 6))
def test_garbled_lines_around_it_hide_no_message(lines: list[bytes], shape: str, place: int) -> None:
    """Cut and binary lines before and behind it: a whole line is read, and nothing is invented beside it.

    A cut line that looks like a falling uptime is a new boot to us; it is set aside here.
    """
    lines = [line for line in lines if b"[" not in line and b"Linux version" not in line and b"-- " not in line]
    lines = [line for line in lines if not re.match(rb"[0-9]+,[0-9]+,[0-9]+,", line)]
    lines.insert(min(place, len(lines)), SHAPES[shape](5000.0, XID).encode())
    fd = os.memfd_create("log")
    try:
        os.write(fd, b"\n".join(lines) + b"\n")
        read = kmsg.load(Path(f"/proc/self/fd/{fd}")).since(re.compile(r"NVRM: Xid .*the bus\.\Z").match, {})
    finally:
        os.close(fd)
    assert [record.text for record in read.records] == [XID]


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if "n17" in SHAPES[shape](1.0, "")])
def test_another_program_s_words_are_no_evidence(shape: str) -> None:
    """The same line under another tag: nothing that matches at its beginning."""
    for tag in (" python[4711]", " kernel-monitor", " Kernel"):
        record = parse(SHAPES[shape](12.5, XID).replace(" kernel", tag, 1))
        assert record is None or not record.text.startswith("NVRM")
