"""Reads step timings from a file: JSON lines or CSV, gzipped or not. A bad line does not spoil the other lines.

docs/localization.md describes the formats. A line that cannot be used becomes a sentence with file and line; of many
problems of one kind only the first is shown, with their number.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from slurm_robust.diagnose.log.lines import read_regular
from slurm_robust.localize.layout import LayoutError, parse
from slurm_robust.localize.ranks import fold, strays
from slurm_robust.localize.timings import Collector, StepTimings, Timing, usable, without

MAX_FILE_BYTES = 1 << 30
"""Unpacked: 100,000 ranks of 50 steps are about 150 MB."""
MAX_RANK = 10_000_000
MAX_STEP = 1 << 53
COLUMNS = ("total_s", "compute_s", "communication_s")
_NODE_CHARS = 64
_Number = TypeVar("_Number", int, float)
_ODD = {
    "again": "rank {rank} reports step {step} a second time; the later report counts",
    "back": "rank {rank} goes back to step {step}; the steps are put in order",
    "moved": "rank {rank} is on another node than before, {node}; its earlier times are left out",
}


class TimingsError(Exception):
    """The file has no timings that can be judged; the message says why."""


@dataclass(frozen=True)
class Read:
    """A file's timings, and a sentence for each kind of problem in the file."""

    timings: StepTimings
    problems: tuple[str, ...] = ()


@dataclass
class _Problems:
    """The first problem of each kind, and how many there are."""

    path: Path
    _first: dict[str, str] = field(default_factory=dict)
    _count: Counter[str] = field(default_factory=Counter)

    def add(self, line: int, kind: str, text: str = "") -> None:
        self._first.setdefault(kind, f"{self.path}: line {line}: {text or kind}")
        self._count[kind] += 1

    def sentences(self) -> tuple[str, ...]:
        more = ((self._count[kind] - 1, text) for kind, text in self._first.items())
        return tuple(f"{text} (and {n} more like it)" if n else text for n, text in more)


class _BadLineError(Exception):
    """A line that cannot be used; the message is the kind of problem."""


def read_timings(path: Path) -> Read:
    """Read a file of step timings.

    Raises:
        TimingsError: no such file, too large, or no timing in it.
    """
    text, problems, collector = _text(path), _Problems(path), Collector()
    layout: dict[str, int] = {}
    order = ""
    lines = _json_lines if text.lstrip()[:1] in ("{", "[") else _csv_lines
    for number, found in lines(text, problems):
        if isinstance(found, str):
            try:
                layout, order = parse(found)
            except LayoutError as error:
                problems.add(number, "layout", str(error))
            continue
        for timing in found:
            if odd := collector.add(timing):
                problems.add(number, odd, _ODD[odd].format(rank=timing.rank, step=timing.step, node=timing.node))
    if not len(collector):
        why = next(iter(problems.sentences()), "")
        raise TimingsError(f"{path}: no timing in it" + (f": {why.removeprefix(f'{path}: ')}" if why else ""))
    timings, sentences = collector.table(layout, order), problems.sentences()
    if stray := strays(timings.ranks):
        timings = without(timings, stray)
        why = f"too high a number beside {len(timings.ranks)} others"
        sentences = (*sentences, f"{path}: rank {fold(stray)}: left out: {why}")
    return Read(timings, sentences)


def _text(path: Path) -> str:
    try:
        data = read_regular(path, MAX_FILE_BYTES + 1)
        if data[:2] == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
                data = stream.read(MAX_FILE_BYTES + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TimingsError(f"{path}: cannot be unpacked: {error}") from None
    except OSError as error:
        raise TimingsError(f"{path}: cannot be read: {error.strerror or error}") from None
    if len(data) > MAX_FILE_BYTES:
        raise TimingsError(f"{path}: larger than {MAX_FILE_BYTES >> 20} MiB: give the last steps only")
    if not data.strip():
        raise TimingsError(f"{path}: empty")
    return data.decode("utf-8", errors="replace").removeprefix("\ufeff")


# -- JSON lines -----------------------------------------------------------------------------------------------------


def _json_lines(text: str, problems: _Problems) -> Iterator[tuple[int, list[Timing] | str]]:
    """Yield each line's number, and its timings or the text of a layout."""
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            raw = json.loads(line)
        except (ValueError, RecursionError):
            last = number == len(lines)  # a whole file ends with a newline, so its last line is empty
            problems.add(number, "cut off in its middle; left out" if last else "not JSON; left out")
            continue
        try:
            if isinstance(raw, dict) and "rank" not in raw and isinstance(raw.get("layout"), (dict, str)):
                yield number, _layout_text(raw["layout"])
            else:
                yield number, _of_object(raw)
        except _BadLineError as bad:
            problems.add(number, str(bad))
        except RecursionError:
            problems.add(number, "nested too deeply; left out")


def _layout_text(raw: Mapping[str, Any] | str) -> str:
    return raw if isinstance(raw, str) else ",".join(f"{key}={value}" for key, value in raw.items())


def _of_object(raw: object) -> list[Timing]:
    if not isinstance(raw, dict):
        raise _BadLineError("no object with rank and step; left out")
    rank, node = _whole(raw, "rank", MAX_RANK), str(raw.get("node") or "")[:_NODE_CHARS]
    if not isinstance(raw.get("steps"), list):
        return [_timing(rank, node, _whole(raw, "step", MAX_STEP), {name: raw.get(name) for name in COLUMNS})]
    steps = raw["steps"]
    columns = {name: raw[name] for name in COLUMNS if raw.get(name) is not None}
    for name, values in columns.items():
        if not isinstance(values, list) or len(values) != len(steps):
            raise _BadLineError(f"{name} has not as many values as steps; left out")
    return [
        _timing(rank, node, _whole({"step": step}, "step", MAX_STEP), {n: v[at] for n, v in columns.items()})
        for at, step in enumerate(steps)
        if any(values[at] is not None for values in columns.values())  # a gap
    ]


def _whole(raw: Mapping[str, Any], name: str, limit: int) -> int:
    value = raw.get(name)
    if type(value) is not int or not 0 <= value <= limit:
        raise _BadLineError(f"{name} is missing, or no whole number; left out")
    return value


def _timing(rank: int, node: str, step: int, values: Mapping[str, Any]) -> Timing:
    seconds = {name: usable(value) for name, value in values.items()}
    if all(value is None for value in seconds.values()):
        raise _BadLineError(f"none of {', '.join(COLUMNS)} is a duration in seconds; left out")
    return Timing(rank, step, node=node, **seconds)


# -- CSV ------------------------------------------------------------------------------------------------------------


def _csv_lines(text: str, problems: _Problems) -> Iterator[tuple[int, list[Timing] | str]]:
    """Yield each line's number and timings; `# layout: tp=2,pp=4` may stand before the header."""
    header: list[str] | None = None
    rows = csv.reader(io.StringIO(text.replace("\0", "")))
    whole = text.endswith("\n")
    last = text.count("\n") + 1
    while True:
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            problems.add(rows.line_num, f"not CSV: {error}; left out")
            continue
        if not row or not "".join(row).strip():
            continue
        if row[0].lstrip().startswith("#"):
            key, _, value = ",".join(row).lstrip("# \t").partition(":")
            if key.strip() == "layout":
                yield rows.line_num, value.strip()
            continue
        if header is None:
            header = [name.strip().lower() for name in row]
            _check(header, problems.path)
            continue
        try:
            cut = rows.line_num >= last and not whole
            yield rows.line_num, [_of_row(header, row, cut=cut)]
        except _BadLineError as bad:
            problems.add(rows.line_num, str(bad))


def _check(header: list[str], path: Path) -> None:
    lacking = [name for name in ("rank", "step") if name not in header]
    if lacking or not set(COLUMNS) & set(header):
        needed = f"no column {lacking[0]!r}" if lacking else f"none of the columns {', '.join(COLUMNS)}"
        expected = f"expected JSON lines, or CSV that begins with: rank,step,{','.join(COLUMNS)},node"
        raise TimingsError(f"{path}: line 1: {needed} ({expected})")


def _of_row(header: list[str], row: list[str], *, cut: bool) -> Timing:
    if len(row) < len(header):
        raise _BadLineError("cut off in its middle; left out" if cut else "fewer columns than the header; left out")
    raw = dict(zip(header, row, strict=False))
    whole = {name: _number(int, raw[name]) for name in ("rank", "step")}
    rank, step = _whole(whole, "rank", MAX_RANK), _whole(whole, "step", MAX_STEP)
    values = {name: _number(float, raw[name]) for name in COLUMNS if name in raw}
    return _timing(rank, raw.get("node", "").strip()[:_NODE_CHARS], step, values)


def _number(kind: Callable[[str], _Number], text: str) -> _Number | None:
    try:
        return kind(text)
    except ValueError:
        return None


# -- written -----------------------------------------------------------------------------------------------------------


def packed(timings: StepTimings) -> bytes:
    """Return the timings as gzipped JSON lines: one for the layout and one for each rank."""
    lines = []
    if timings.layout:
        order = f",order={timings.layout_order}" if timings.layout_order else ""
        sizes = ",".join(f"{kind}={size}" for kind, size in timings.layout.items())
        lines.append(json.dumps({"layout": sizes + order}))
    for at, rank in enumerate(timings.ranks):
        fields = {"rank": rank, "node": timings.nodes.get(rank, ""), "steps": timings.steps}
        kinds = zip(COLUMNS, (timings.total, timings.compute, timings.communication), strict=True)
        # Own work that was computed as total less communication is not written, so that readers know that it was.
        given = (kind for kind in kinds if kind[0] != "compute_s" or rank not in timings.derived)
        fields.update((name, _column(rows, at)) for name, rows in given)
        lines.append(json.dumps({key: value for key, value in fields.items() if value is not None}))
    return gzip.compress(("\n".join(lines) + "\n").encode(), 6, mtime=0)


def _column(rows: Sequence[array[float]], at: int) -> list[float | None] | None:
    """Return one rank's values of one kind; None if it has none."""
    values = [row[at] if math.isfinite(row[at]) else None for row in rows]
    return values if any(value is not None for value in values) else None
