"""Keeps the newest findings in memory, and writes them whole into the file that agents read.

Equal findings that come close together become one, with a count. If a write fails (a full disk, a folder that others
may write), that is said once and the write is tried again: nothing here raises.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from slurm_robust.marks import node_findings
from slurm_robust.marks.node_findings import NodeFinding
from slurm_robust.nodecheck.catalogue.job_urgency import IF_REPEATED, NOTE
from slurm_robust.nodecheck.engine.finding import shorten
from slurm_robust.wire import whole_file

WRITE_S = 0.2
"""The least time between two writes."""
FLAP_MERGE_S = 10.0
"""A link that trains goes up and down a few times: that is one loss."""
MERGE_S = 600.0
_MAX_KEPT = 192
_MAX_OF_ONE = 16
"""The most findings kept of one thing: a link that flaps all day must not push out the loss of a GPU."""
_TEXT_CHARS = 240
_TRY_AGAIN_S = 5.0
_COUNTED = re.compile(r" \(seen \d{1,12} times\)\Z")
_LINES = ("kmsg",)
"""Sources whose findings say nothing about earlier ones."""
_SAME_S = 1.0
"""A time since boot, made a time of day twice, differs by less."""

Say = Callable[[str], None]
_What = tuple[str, str, tuple[int, ...], str, "int | None"]
_Key = tuple[_What, str]


class Seen(NamedTuple):
    """A finding that has no number yet.

    Attributes:
        finding: The finding, with `seq` 0.
        times: How often the finding was seen.
        about: What else tells the finding from others of its kind: a disk, a reason.
        unfit: Whether the check or catalogue that judged the finding fails the node.
        remedy: The name of the remedy that repairs the node without a person; empty for none.
        well: Whether the problem of this kind is over.
    """

    finding: NodeFinding
    times: int = 1
    about: str = ""
    unfit: bool = False
    remedy: str = ""
    well: bool = False


class _Entry(NamedTuple):
    seq: int
    at_s: float
    source: str
    times: int


class FindingRing:
    """The findings of this boot.

    Attributes:
        dirty: Something is not written yet.
    """

    def __init__(self, folder: Path, boot: str, say: Say) -> None:
        self.folder, self.boot = folder, boot
        self._say = say
        self._kept: list[NodeFinding] = []
        self._earlier: list[NodeFinding] = []
        self._entries: dict[_Key, _Entry] = {}
        self._next_seq = 1
        self._written_s = -WRITE_S
        self._identity: tuple[int, int] | None = None
        self._problem = ""
        self.dirty = True  # an empty ring says that somebody watches

    def load(self, least_seq: int = 0) -> None:
        """Go on where an earlier service of this boot ended.

        Args:
            least_seq: Numbers up to this one were given out, even if the file does not have them.
        """
        try:
            found = node_findings.read(str(self.folder), self.boot, owners=(0, os.geteuid()))
        except (node_findings.UntrustedRingError, OSError) as error:
            self._say(f"the findings of an earlier start are not believed: {error}")
            found = []
        self._kept = found[-_MAX_KEPT:]
        self._earlier = [finding._replace(text=_COUNTED.sub("", finding.text)) for finding in self._kept]
        self._next_seq = max([least_seq, *(finding.seq for finding in self._kept)]) + 1

    @property
    def last_seq(self) -> int:
        """The number of the newest finding; 0 before the first."""
        return self._next_seq - 1

    @property
    def findings(self) -> list[NodeFinding]:
        """The findings that are kept, in the order of numbers."""
        return list(self._kept)

    def add(self, seen: Seen) -> NodeFinding | None:
        """Keep a finding; returns it with its number, or None if the ring has it already."""
        text = shorten(seen.finding.text.encode("ascii", "replace").decode(), _TEXT_CHARS)
        finding = seen.finding._replace(text=_counted(text, seen.times))
        what = _what(finding)
        if any((_what(old), old.text) == (what, text) and _same_time(old, finding) for old in self._earlier):
            return None  # read a second time, after a restart
        key = (what, seen.about)
        known = self._entries.get(key)
        window_s = FLAP_MERGE_S if finding.urgency == IF_REPEATED else MERGE_S
        if known is not None and abs(finding.at_s - known.at_s) < window_s:
            if known.source == finding.source:  # not where two sources tell of the same
                self._raise(key, known, text, seen.times)
            return None
        if finding.source not in _LINES:
            self._entries = {k: entry for k, entry in self._entries.items() if not _ends(finding, k[0])}
        numbered = finding._replace(seq=self._next_seq)
        self._next_seq += 1
        self._kept.append(numbered)
        self._entries[key] = _Entry(numbered.seq, finding.at_s, finding.source, seen.times)
        self._forget(what)
        self.dirty = True
        return numbered

    def _raise(self, key: _Key, known: _Entry, text: str, more: int) -> None:
        """Raise the count in the sentence; its time stays, so that a storm that lasts is told again."""
        count = known.times + more
        self._entries[key] = known._replace(times=count)
        self._kept = [
            kept._replace(text=_counted(text, count)) if kept.seq == known.seq else kept for kept in self._kept
        ]
        self.dirty = True

    def _forget(self, what: _What) -> None:
        """Keep within bounds: the oldest of too many alike go first, then notes, then the oldest."""
        alike = [kept.seq for kept in self._kept if _what(kept) == what]
        gone = set(alike[:-_MAX_OF_ONE])
        if len(self._kept) - len(gone) > _MAX_KEPT:
            notes = [kept.seq for kept in self._kept[:-1] if kept.urgency == NOTE and kept.seq not in gone]
            gone.add(notes[0] if notes else self._kept[0].seq)
        if gone:
            self._kept = [kept for kept in self._kept if kept.seq not in gone]
            self._entries = {key: entry for key, entry in self._entries.items() if entry.seq not in gone}

    def due_s(self) -> float:
        """Return when the next write may be, monotonic; infinity if nothing is to be written."""
        pause_s = _TRY_AGAIN_S if self._problem else WRITE_S
        return self._written_s + pause_s if self.dirty else float("inf")

    def flush(self, now_s: float) -> bool:
        """Write what is new, if the write is due; return True if nothing is left to write."""
        if self.dirty and now_s >= self.due_s():
            self._written_s = now_s
            problem = self._write()
            if problem and problem != self._problem:
                self._say(f"the findings cannot be written, and jobs do not learn of them: {problem}")
            elif self._problem and not problem:
                self._say("the findings are written again")
            self._problem, self.dirty = problem, bool(problem)
        return not self.dirty

    def inspect(self) -> None:
        """Have the file written again if somebody removed or replaced it."""
        try:
            info = os.lstat(self.folder / node_findings.FILE_NAME)
            identity: tuple[int, int] | None = (info.st_dev, info.st_ino)
        except OSError:
            identity = None
        if self._identity is not None and identity != self._identity and not self.dirty:
            done = "removed" if identity is None else "replaced"
            self._say(f"{self.folder / node_findings.FILE_NAME} was {done} by somebody else; it is written again")
            self.dirty = True

    def _write(self) -> str:
        """Write the file; returns what went wrong."""
        try:
            self.folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            inside = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            return f"{self.folder}: {error.strerror}"
        try:
            info = os.fstat(inside)
            if info.st_uid not in (0, os.geteuid()) or info.st_mode & 0o022:
                mode = f"{stat.S_IMODE(info.st_mode):o}"
                return f"{self.folder} may be written by others (owner {info.st_uid}, mode {mode}); chmod go-w it"
            data = node_findings.encode(self._kept, self.boot)
            own = whole_file.write(node_findings.FILE_NAME, data, inside=inside, mode=0o644)
            self._identity = (own.st_dev, own.st_ino)
        except OSError as error:
            return f"{self.folder}/{node_findings.FILE_NAME}: {error.strerror}"
        finally:
            os.close(inside)
        return ""


def _what(finding: NodeFinding) -> _What:
    return (finding.kind, finding.urgency, finding.gpus, finding.port, finding.code)


def _ends(finding: NodeFinding, what: _What) -> bool:
    """Return whether a check's or port's present word ends that problem, so that a new one is told again."""
    kind, urgency, _, port, _ = what
    return (kind, port) == (finding.kind, finding.port) and urgency not in (finding.urgency, IF_REPEATED)


def _same_time(one: NodeFinding, other: NodeFinding) -> bool:
    return abs(one.at_s - other.at_s) < _SAME_S


def _counted(text: str, count: int) -> str:
    return f"{text} (seen {count} times)" if count > 1 else text
