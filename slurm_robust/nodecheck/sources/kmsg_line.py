"""Reads one line of a kernel log, in any of the shapes in which logs are saved.

The shapes are raw records of `/dev/kmsg`; dmesg's, with or without `-T`, `-x`, `-r`, `-e`, `-d`, `--time-format iso`;
journalctl's short, short-iso, short-precise, short-full, short-monotonic and short-unix; syslog's, also with its
priority before it (RFC 3164 and 5424). Standard library only; nothing here reads a file.

Users can choose some of the words: only `KernelRecord.evidence` decides which text may be believed.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTH = "|".join(_MONTHS)

_RAW = re.compile(r"([0-9]{1,5}),([0-9]{1,20}),([0-9]{1,20}),[^;]{0,64};(.*)", re.DOTALL)
_LEVEL = re.compile(rf"(?:([a-z0-9]+) *: *[a-z]+ *: ?|<([0-9]{{1,3}})>(?:1 )?)(?=\[|[0-9]{{4}}-|(?:{_MONTH}) )")
_UPTIME = re.compile(r"\[ *([0-9]{1,12}\.[0-9]{1,9})(?: < *[0-9.]{1,20}>)?\] ?")
_SINCE = re.compile(
    rf"\[(?:(?:{_MONTH}) ?[0-9]{{1,2}} [0-9]{{2}}:[0-9]{{2}}| *(?:\+|< *)[0-9]{{1,12}}\.[0-9]{{1,9}}>?)\] ?"
)
_CTIME = re.compile(rf"\[\w{{3}} +({_MONTH}) +([0-9]{{1,2}}) ([0-9]{{2}}):([0-9]{{2}}):([0-9]{{2}}) ([0-9]{{4}})\] ?")
_ISO = re.compile(
    r"(?:[A-Z][a-z]{2} )?([0-9]{4})-([0-9]{2})-([0-9]{2})[T ]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:[.,][0-9]{1,9})?"
    r"(?:(Z|[+-][0-9]{2}:?[0-9]{2})| [A-Z]{3,5})? "
)
_SYSLOG = re.compile(rf"(?:{_MONTH}) [ 0-9][0-9] [0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}}(?:\.[0-9]{{1,9}})? ")
_UNIX = re.compile(r"([0-9]{9,11}\.[0-9]{6}) (?=[\w.-]+ [\w.@/()-]+(?:\[[0-9]+\])?: )")
_TAG = re.compile(r"([\w.-]+) ([\w.@/()-]+)(?:\[[0-9]+\])?(?:: ?| (?:[0-9]+|-) \S+ - ?)")
_MONOTONIC_TAG = re.compile(r"[\w.-]+ kernel: ")
_ESCAPED = re.compile(r"\\x[0-9a-f]{2}|#[0-7]{3}")
"""A byte that is not printed, as `/dev/kmsg` and as rsyslog write it."""
_NAMED_BY_A_PROCESS = re.compile(
    r".{0,15}(?:\[ *\d{1,10}\]|/\d{1,10}: | ?\(\d{1,10}\)| invoked oom-killer|: page allocation failure"
    r"|: vmalloc error| +[RSDTtXZPI] +(?:stack:|running task|[0-9a-f])"
    r"| uses obsolete \(PF_INET| calls setitimer\(\)| sent an empty control| wrote to /| using unsupported default)",
    re.DOTALL,
)
"""`COMM[PID]: segfault at …`, `COMM/PID: potentially unexpected fatal signal`, `COMM(PID): …`: a process chooses the
15 bytes of its name (`TASK_COMM_LEN`), and behind the PID often stands a file's name, which is a user's as well."""
_HOLDS_USERS_WORDS = ("traps: ", "process '", "audit: ", "NVRM: API mismatch")
"""Beginnings of lines that hold a name of a user's or, of NVIDIA's driver, a text that a client sends."""
_MOUNTED_BY_USERS = ("tmpfs: ", "overlay: ", "overlayfs: ", "fuse: ", "ramfs: ", "proc: ", "sysfs: ", "cgroup2: ")
"""The beginnings of messages about mounts by users in their own name spaces; the log repeats unknown mount options."""


@dataclass(frozen=True)
class KernelRecord:
    """One message of the kernel.

    Attributes:
        text: The message without time, level, host and tag.
        seq: The kernel's number of the message, if the shape has one.
        uptime_s: Seconds since boot, if the shape has them.
        wall_s: Seconds since the epoch, if the shape has date and year.
        facility: Syslog's number of the writer: 0 is the kernel, and a write to `/dev/kmsg` never gets it.
    """

    text: str
    seq: int | None = None
    uptime_s: float | None = None
    wall_s: float | None = None
    facility: int = 0

    @property
    def evidence(self) -> bool:
        """Whether it may tell of the node: the kernel wrote it, and no process chose how it begins."""
        return self.facility == 0 and not self.holds_users_words

    @property
    def holds_users_words(self) -> bool:
        """Whether it repeats names or texts of a user's, who may have put line breaks into them."""
        start = _ESCAPED.sub("?", self.text[:160])
        return start.startswith(_HOLDS_USERS_WORDS + _MOUNTED_BY_USERS) or bool(_NAMED_BY_A_PROCESS.match(start))


def parse(line: str) -> KernelRecord | None:
    """Read one line; None if it is not the kernel's (another program's tag, a continuation, nothing)."""
    line = line.rstrip("\r\n")
    if not line.strip():
        return None
    if raw := _RAW.match(line):
        # Behind the first newline of a record stand its ` KEY=value` lines.
        text = raw[4].split("\n", 1)[0]
        return KernelRecord(text, int(raw[2]), int(raw[3]) / 1e6, facility=int(raw[1]) >> 3)
    if line[0] in " \t":
        return None
    return _parse_saved(line)


def _parse_saved(line: str) -> KernelRecord | None:
    """Parse the shapes that dmesg, journalctl and syslog write."""
    facility = 0
    if level := _LEVEL.match(line):
        line = line[level.end() :]
        facility = int(level[2]) >> 3 if level[2] else int(level[1] != "kern")
    wall_s: float | None = None
    if since := _SINCE.match(line):
        return KernelRecord(line[since.end() :], facility=facility)
    if ctime := _CTIME.match(line):
        month, day, hour, minute, second, year = ctime.groups()
        wall_s = _wall(int(year), _MONTHS.index(month) + 1, int(day), int(hour), int(minute), int(second))
        return KernelRecord(line[ctime.end() :], wall_s=wall_s, facility=facility)
    if stamp := _ISO.match(line) or _SYSLOG.match(line) or _UNIX.match(line):
        if stamp.re is _ISO:
            wall_s = _wall(*(int(part) for part in stamp.groups()[:6]), zone=stamp[7])
        elif stamp.re is _UNIX:
            wall_s = float(stamp[1])
        line = line[stamp.end() :]
        # Only dmesg writes a comma into a time, and it names no host: `mlx5_core 0000:3b:00.0: ` is no tag there.
        if "," not in stamp[0] and (tag := _TAG.match(line)):
            # `host kernel: …`; other programs' lines may have any words, and are no evidence.
            if tag[2] != "kernel":
                return None
            line = line[tag.end() :]
    uptime_s = None
    if uptime := _UPTIME.match(line):
        uptime_s = float(uptime[1])
        line = line[uptime.end() :]
        # journalctl's short-monotonic has host and tag behind the uptime.
        if tag := _MONOTONIC_TAG.match(line):
            line = line[tag.end() :]
    return KernelRecord(line, uptime_s=uptime_s, wall_s=wall_s, facility=facility)


def _wall(*fields: int, zone: str | None = None) -> float | None:
    """Seconds since the epoch; None for a date that does not exist. Without a zone it is this machine's time."""
    year, month, day, hour, minute, second = fields
    if not (1970 <= year <= 2200 and 1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second < 62):
        return None
    try:
        local_s = time.mktime((year, month, day, hour, minute, second, 0, 0, -1))
    except (OverflowError, ValueError):
        return None
    if not zone:
        return local_s
    utc_s = local_s + time.localtime(local_s).tm_gmtoff
    if zone == "Z":
        return utc_s
    sign = -1 if zone[0] == "-" else 1
    return utc_s - sign * (int(zone[1:3]) * 3600 + int(zone[-2:]) * 60)
