"""Reads the lines for a diagnosis, applies the rules to them, and finds the root error."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from slurm_robust.cli.diagnosis.saved_incidents import SavedIncident
from slurm_robust.cli.diagnosis.subject import Subject
from slurm_robust.core.model import Conclusion, Signal
from slurm_robust.diagnose.findings import LogFinding, Matcher, findings
from slurm_robust.diagnose.large_files import scan
from slurm_robust.diagnose.lines import unlabelled
from slurm_robust.diagnose.log.lines import read_regular
from slurm_robust.diagnose.reported_gpu_faults import with_node_fault
from slurm_robust.diagnose.root import Diagnosis, diagnose, diagnose_attempts, without_root
from slurm_robust.diagnose.taxonomy import Blame
from slurm_robust.localize.circumstances import CIRCUMSTANCES_FILE

MOST_BYTES = 64 << 20
"""The most bytes read of a file that has no size (a pipe)."""
WHOLE_BYTES = 2 << 20
"""The size beyond which only the lines of a log are kept that may mean something."""
_MOST_RANKS = 64
"""Whose last words are read, the first that ended: all others only follow."""
_STEP = re.compile(r"\b(?:step|iter(?:ation)?)\b\W{0,4}\d", re.IGNORECASE)
_SURVIVED = 3
"""The number of lines with steps after a warning that show that training went on."""
_RANK = re.compile(r"^\s*(?:\d+: )?\[?rank[ _]?(\d{1,7})\]?|^\s*(\d{1,7}): ")


class LinePlace(NamedTuple):
    """The place of a line.

    Attributes:
        line: The line's number in the file, or among the last lines of a saved rank.
        rank: The rank whose saved last words the line belongs to; None for a line of a file, or without a rank.
        saved: Whether the line was saved in an incident; then `line` counts the last lines there.
    """

    file: str
    line: int
    rank: int | None = None
    node: str = ""
    saved: bool = False


@dataclass
class LinesRead:
    """The lines that were read, and what rules recognise in them.

    Attributes:
        lines: File, line number and text of each line, in the order in which findings are numbered.
        places: The places of these lines.
        read: Each file, and the number of its lines.
        notes: A sentence for each thing that could not be read.
        faults: The reports of nodes that decide about the blame, and why.
        leads: The incident that names a culprit, if no error that was read goes before it.
    """

    lines: list[tuple[str, int, str]] = field(default_factory=list)
    places: list[LinePlace] = field(default_factory=list)
    found: list[LogFinding] = field(default_factory=list)
    read: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    faults: str = ""
    leads: SavedIncident | None = None


def read_subject(subject: Subject, matcher: Matcher) -> tuple[LinesRead, Diagnosis]:
    """Find the root: of an incident by its last words, else by the output.

    A job's output may hold other attempts' errors too, so an incident's own last words go first.
    """
    reading = LinesRead(notes=list(subject.notes))
    saved = subject.incident or next(iter(subject.incidents), None)
    if subject.incident is not None:
        _add_last_words(reading, subject.incident, matcher)
        if _consequence(diagnose(reading.found)):
            _add_files(reading, subject.files, matcher)
    else:
        _add_files(reading, subject.files, matcher)
        if saved is not None and _consequence(diagnose_attempts(reading.found)):
            _add_last_words(reading, saved, matcher)
    # Which attempt an incident was of, its job's output does not say.
    diagnosis = (diagnose if subject.incident is not None else diagnose_attempts)(reading.found)
    if saved is not None:
        only = subject.incident is not None or len(subject.incidents) == 1
        diagnosis, reading.faults = _beside_faults(diagnosis, reading, saved, only=only)
        reading.leads = saved if _leads(saved, diagnosis) else None
    root = diagnosis.root
    if root is not None and root.mild and (reading.leads is not None or _survived(root, reading)):
        diagnosis = without_root(diagnosis)
    return reading, diagnosis


def _leads(saved: SavedIncident, diagnosis: Diagnosis) -> bool:
    """Return whether the incident's verdict tells more than the lines.

    The lines of an open hang may be an earlier attempt's.
    """
    incident, root = saved.incident, diagnosis.root
    if incident is None or incident.verdict is None or incident.verdict.conclusion is not Conclusion.CULPRIT:
        return False
    is_hang = not any(end.signal or end.exit_code for end in saved.exits)
    return is_hang and (root is None or root.mild or not incident.outcome)


def _survived(root: LogFinding, reading: LinesRead) -> bool:
    """Return whether steps followed a warning of something that nodes share.

    After a program's own warning, later steps show nothing.
    """
    if root.blame is not Blame.SHARED:
        return False
    after = (line for _, _, line in reading.lines[root.number + 1 :] if _STEP.search(line))
    return sum(1 for _ in islice(after, _SURVIVED)) == _SURVIVED


def _consequence(diagnosis: Diagnosis) -> bool:
    return diagnosis.root is None or diagnosis.category.consequence


def _add_last_words(reading: LinesRead, saved: SavedIncident, matcher: Matcher) -> None:
    path = str(saved.folder / CIRCUMSTANCES_FILE)
    first = saved.exits[:_MOST_RANKS]
    for end in first:
        _add(reading, end.last_lines, matcher, LinePlace(path, 0, end.rank, end.node, saved=True))
    known = saved.circumstances
    raised = list(known.raised.items())[:_MOST_RANKS] if known is not None else []
    for rank, one in raised:  # of ranks that had not ended yet
        if known is not None and all(rank != end.rank for end in first):
            _add(reading, one.lines, matcher, LinePlace(path, 0, rank, known.rank_nodes.get(rank, ""), saved=True))
    for lines in dict.fromkeys(end.shared_lines for end in first):
        _add(reading, lines, matcher, LinePlace(path, 0, saved=True))
    reading.notes += saved.problems


def _add(reading: LinesRead, lines: Sequence[str], matcher: Matcher, place: LinePlace) -> None:
    """The lines of one stream."""
    attempt = max((one.attempt for one in reading.found), default=0)
    found = findings(lines, place.rank, matcher, first=len(reading.lines))
    reading.found += [replace(one, attempt=attempt) for one in found]
    reading.places += [place._replace(line=number) for number in range(1, len(lines) + 1)]
    reading.lines += [(place.file, number, line) for number, line in enumerate(lines, 1)]
    reading.read[place.file] = reading.read.get(place.file, 0) + len(lines)


def _add_files(reading: LinesRead, files: Sequence[Path], matcher: Matcher) -> None:
    """Add all lines of output files, as one stream; of large files, only the lines that a rule may match."""
    first = len(reading.lines)
    if _size_bytes(files) > WHOLE_BYTES:
        scanned = scan(files, matcher)
        reading.notes += scanned.problems
        reading.read |= scanned.read
        reading.lines += scanned.lines
        found = [replace(one, number=first + one.number) for one in scanned.found]
    else:
        for path in files:
            try:
                text = read_regular(path, MOST_BYTES).replace(b"\r", b"\n").decode("utf-8", "replace")
            except OSError as error:
                reading.notes.append(f"{path}: cannot be read: {error.strerror}")
                continue
            own = [(str(path), number, line) for number, line in enumerate(text.split("\n"), 1)]
            reading.read[str(path)] = len(own)
            reading.lines += own
        found = findings([text for _, _, text in reading.lines[first:]], rules=matcher, first=first)
    reading.places += [LinePlace(path, number) for path, number, _ in reading.lines[first:]]
    reading.found += found if len(files) == 1 else _of_unknown_attempts(found, reading.places)


def _of_unknown_attempts(found: Sequence[LogFinding], places: Sequence[LinePlace]) -> list[LogFinding]:
    """The same, where files that do not tell attempts apart may tell of any, and so of the last one."""
    last = max((one.attempt for one in found), default=0)
    seen: dict[str, set[int]] = {}
    for one in found:
        seen.setdefault(places[one.number].file, set()).add(one.attempt)
    return [one if len(seen[places[one.number].file]) > 1 else replace(one, attempt=last) for one in found]


def _size_bytes(files: Sequence[Path]) -> int:
    total = 0
    for path in files:
        with contextlib.suppress(OSError):  # the reading says so
            total += path.stat().st_size
    return total


def _beside_faults(
    diagnosis: Diagnosis, reading: LinesRead, saved: SavedIncident, *, only: bool
) -> tuple[Diagnosis, str]:
    """Return the diagnosis with the reports of nodes from that time, if the root is known to be of this incident."""
    root = diagnosis.root
    if root is None:
        return diagnosis, ""
    place = reading.places[root.number]
    rank, node = place.rank, place.node
    if rank is None:
        labelled = _RANK.match(root.text)
        rank = int(labelled[1] or labelled[2]) if labelled is not None else None
    words = unlabelled(root.text)
    end = next((e for e in saved.exits if rank in (None, e.rank) and _said(e.last_lines, words)), None)
    if end is None and not only:
        return diagnosis, ""  # the output holds other incidents' lines too
    end = end or next((e for e in saved.exits if e.rank == rank), None)
    if end is None and rank is None and len({e.node for e in saved.exits}) == 1:
        end = saved.exits[0]  # a line that names no rank, and ranks of one node ended
    known = saved.circumstances.rank_nodes if saved.circumstances is not None else {}
    node = node or (end.node if end is not None else "") or (known.get(rank, "") if rank is not None else "")
    at_s = end.at_s if end is not None else _fault_at_s(saved)
    return with_node_fault(diagnosis, node, at_s, saved.signals)


def _said(lines: Sequence[str], words: str) -> bool:
    return any(words in line for line in lines)


def _fault_at_s(saved: SavedIncident) -> float:
    return saved.incident.times.get("fault", saved.at_s) if saved.incident is not None else saved.at_s


def shown_signals(saved: SavedIncident) -> list[Signal]:
    """Return the signals that nodes reported, without those of the incident's own ranks."""
    return [signal for signal in saved.signals if signal.node]
