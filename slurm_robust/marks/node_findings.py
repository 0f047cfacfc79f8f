"""Reads and writes the file of findings about a node: the node watch writes it, the agents of jobs there read it.

`findings.jsonl` in `nodecheck.cache_dir` holds the last findings of this boot: a header line, then a line each. Root
writes it whole and renames it into place, so that a reader sees either the old or the new one. It is readable by all,
and is believed only if no user but root could have written it. Agents read it: Python 3.8 and the standard library
only.
"""

from __future__ import annotations

import json
import math
import os
import stat
from typing import Any, NamedTuple, Sequence

from slurm_robust.wire import plain_file

FILE_NAME = "findings.jsonl"
VERSION = 1
MAX_FINDINGS = 256
MAX_BYTES = 256 << 10
MAX_TEXT_CHARS = 400
NOW, IF_REPEATED, AT_NEXT_CHECKPOINT, NOTE = "now", "if_repeated", "at_next_checkpoint", "note"
URGENCIES = (NOW, IF_REPEATED, AT_NEXT_CHECKPOINT, NOTE)
"""The actions of a job: leave the node at once; if the fault repeats soon; after the next checkpoint; do nothing."""
_MAX_WORD_CHARS = 64
_MAX_GPUS = 64


class UntrustedRingError(Exception):
    """The file, or the way to it, could have been written by somebody else; the message says which and why."""


class NodeFinding(NamedTuple):
    """One finding.

    Attributes:
        seq: The finding's number; numbers rise by one, also across restarts of the service within a boot.
        at_s: When it was seen, seconds since the epoch.
        source: Where it was seen: `kmsg`, `nvml`, `link`, `rdma`, `poll`.
        kind: The kind of fault: the name of the check or kernel message that judges it.
        urgency: One of `URGENCIES`.
        text: A sentence for people.
        gpus: Numbers of the GPUs that are affected, by their device files `/dev/nvidiaN`; empty if any GPU may be
            affected, or none is.
        port: The network device and port that is affected, `mlx5_0/1`; empty for none.
        code: The XID or SXID; None if there is none.
    """

    seq: int
    at_s: float
    source: str
    kind: str
    urgency: str
    text: str
    gpus: tuple[int, ...] = ()
    port: str = ""
    code: int | None = None

    @property
    def about_gpus(self) -> bool:
        """Whether the finding concerns only jobs that use GPUs."""
        return about_gpus(self.kind, self.gpus)


def about_gpus(kind: str, gpus: Sequence[int]) -> bool:
    """Return whether a fault of this kind and these GPUs concerns only jobs that use GPUs."""
    return bool(gpus) or kind in ("xid", "sxid") or kind.startswith("gpu_")


def about_rdma(kind: str) -> bool:
    """Return whether a fault of this kind concerns only jobs that train over RDMA between nodes."""
    return kind == "port" or kind.startswith("rdma_")


def boot_id() -> str:
    """Return the kernel's name for this boot; empty if it cannot be read."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read(64).strip()
    except (OSError, UnicodeDecodeError):
        return ""


def encode(findings: Sequence[NodeFinding], boot: str) -> bytes:
    """Return the file with the last of these findings, within `MAX_FINDINGS` and `MAX_BYTES`."""
    header = json.dumps({"v": VERSION, "boot": boot})
    lines: list[str] = []
    size = len(header) + 1
    for finding in reversed(findings[-MAX_FINDINGS:]):
        line = json.dumps(finding._replace(text=finding.text[:MAX_TEXT_CHARS])._asdict())
        size += len(line) + 1
        if size > MAX_BYTES:
            break
        lines.append(line)
    return ("\n".join([header, *reversed(lines)]) + "\n").encode("ascii")


def decode(data: bytes, boot: str) -> list[NodeFinding]:
    """Return the findings of this boot, in their order. Lines that are not findings of any version are skipped."""
    lines = data[:MAX_BYTES].split(b"\n")
    header = _object(lines[0])
    if header.get("v") != VERSION or header.get("boot") != boot:
        return []
    found = (believable(_object(line)) for line in lines[1:])
    return [finding for finding in found if finding is not None]


def read(folder: str, boot: str, owners: Sequence[int] = (0,)) -> list[NodeFinding]:
    """Return the findings in this folder; none if there is no file.

    Args:
        folder: `nodecheck.cache_dir`.
        boot: The present boot's id: findings of another boot are left out.
        owners: User ids that may own folder and file.

    Raises:
        UntrustedRingError: somebody else could have written it.
    """
    try:
        with_folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UntrustedRingError("{}: {}".format(folder, error.strerror)) from None
    try:
        _check(folder, os.fstat(with_folder), owners)
        path = os.path.join(folder, FILE_NAME)
        try:
            fd = plain_file.open_plain(FILE_NAME, inside=with_folder)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UntrustedRingError("{}: {}".format(path, error.strerror)) from None
        with os.fdopen(fd, "rb") as file:
            _check(path, os.fstat(fd), owners)
            return decode(file.read(MAX_BYTES), boot)
    finally:
        os.close(with_folder)


def _check(path: str, info: os.stat_result, owners: Sequence[int]) -> None:
    if info.st_uid not in owners:
        raise UntrustedRingError("{}: owned by user {}".format(path, info.st_uid))
    if info.st_mode & 0o022:
        raise UntrustedRingError("{}: writable by others (mode {:o})".format(path, stat.S_IMODE(info.st_mode)))


def _object(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def believable(raw: dict[str, Any]) -> NodeFinding | None:
    """Return a finding from elsewhere, by its fields' names; None if a field is missing or has a wrong value."""
    seq, at_s, gpus, code = raw.get("seq"), raw.get("at_s"), raw.get("gpus", []), raw.get("code")
    words = [raw.get(key, "") for key in ("source", "kind", "urgency", "port")]
    text = raw.get("text")
    if not _whole(seq) or isinstance(at_s, bool) or not isinstance(at_s, (int, float)) or not _finite(at_s):
        return None
    if not all(isinstance(word, str) and len(word) <= _MAX_WORD_CHARS and word.isprintable() for word in words):
        return None
    if words[2] not in URGENCIES or not isinstance(text, str) or not (code is None or _whole(code)):
        return None
    if not isinstance(gpus, (list, tuple)) or len(gpus) > _MAX_GPUS or not all(_whole(gpu) for gpu in gpus):
        return None
    shown = printable(text[:MAX_TEXT_CHARS])
    assert isinstance(seq, int)
    return NodeFinding(seq, float(at_s), words[0], words[1], words[2], shown, tuple(gpus), words[3], code)


def printable(text: str) -> str:
    """Return the text with a question mark for each character that cannot be shown on a line."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def _finite(value: float) -> bool:
    try:
        return math.isfinite(float(value))
    except OverflowError:  # a whole number of 400 digits
        return False
