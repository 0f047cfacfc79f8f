"""Reads progress lines by the shapes of log_shapes.yaml: which number is the step, and what does it count?

The file explains its fields. Its patterns are compiled when a line first contains their word, so that the supervisor's
start only has to read the file.
"""

from __future__ import annotations

import enum
import functools
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

_FILE = Path(__file__).with_name("log_shapes.yaml")
_GROUPS = {
    # `1,000` is one number; a time, a percentage, a decimal or a part of one is not.
    "<step>": r"(?P<step>\d{1,3}(?:,\d{3})+(?!\d)|\d+)\b(?!,\d{3}\b|\.\d| ?(?:%|m?s\b|sec))",
    "<total>": r"(?P<total>\d+)",
    "<epoch>": r"(?P<epoch>\d{1,9})",
    "<start>": r"(?:^|[\s\]:>)|])",
}
_GROUP = re.compile(r"(?<!\?P)<(?:step|total|epoch|start)>")
_UNITS = {"k": 1_000, "m": 1_000_000}
_MAX_DIGITS = 18
_MAX_SETS = 1024
_NEVER = re.compile(r"(?!)(?P<step>)")


class Counts(enum.Enum):
    """The unit that the number of a shape counts."""

    TRAINING = "training"
    EPOCH = "epoch"
    OTHER = "other"
    UNKNOWN = ""


class CounterReading(NamedTuple):
    """One line's counter, as a shape reads it.

    Attributes:
        name: Name of the counter: lines of another shape or with another total are another counter.
        number: The number as it is in the line.
        total: The total; 0 if the line has none.
        epoch: The epoch; None if the shape reads none, though the line may contain one.
        first_epoch: The number of the first epoch, if epoch and total make the number a step of the training.
        end: The place in the line at which its last number ends.
        learned: The counter was learned, and is not read by a shape.
        times: How often a bar with this total has been full, from the second time on; else 0.
        spent_s: How long a full bar took; 0 if not known.
    """

    name: str
    number: int
    total: int = 0
    epoch: int | None = None
    counts: Counts = Counts.UNKNOWN
    first_epoch: int | None = None
    end: int = 0
    learned: bool = False
    times: int = 0
    spent_s: int = 0


@dataclass(frozen=True)
class Shape:
    """One entry of the file."""

    name: str
    source: str
    words: tuple[str, ...]
    pattern: str
    counts: Counts = Counts.UNKNOWN
    first_epoch: int | None = None
    times: int = 1
    """The factor by which a decimal number is multiplied; 1 for numbers without decimals."""
    examples: tuple[tuple[int | None, str], ...] = ()
    """(step that must be read, line); None as step if the line does not show a step of a training."""

    @functools.cached_property
    def compiled(self) -> re.Pattern[str]:
        """The compiled pattern, with `<step>`, `<total>`, `<epoch>` and `<start>` replaced by what they stand for."""
        pattern = _GROUP.sub(lambda match: _GROUPS[match[0]], self.pattern)
        for word in sorted(self.words, key=len):
            # If a pattern begins with its word, the word is searched first: `re` is only fast with such a beginning.
            begins = r"\b" + re.escape(word)
            if pattern.startswith(begins):
                pattern = f"{re.escape(word)}(?<={begins}){pattern.removeprefix(begins)}"
                break
        try:
            return re.compile(pattern)
        except re.error as e:
            print(f"srobust: the shape {self.name} of log lines is left out: {e}", file=sys.stderr)
            return _NEVER

    def read(self, low: str) -> CounterReading | None:
        """Return the counter in a line in lower case; None if the line has another shape."""
        match = self.compiled.search(low)
        if match is None:
            return None
        number = _number(match["step"]) if self.times == 1 else round(float(match["step"]) * self.times)
        if number is None:
            return None
        total_text, end, epoch = "", match.end("step"), None
        if self._has_total and match["total"] is not None:
            total_text, end = match["total"], max(end, match.end("total"))
        if self._has_epoch:
            epoch, end = _number(match["epoch"]), max(end, match.end("epoch"))
        total = _number(total_text) or 0 if total_text else 0
        return CounterReading(f"{self.name}/{total_text}", number, total, epoch, self.counts, self.first_epoch, end)

    @functools.cached_property
    def _has_total(self) -> bool:
        return "total" in self.compiled.groupindex

    @functools.cached_property
    def _has_epoch(self) -> bool:
        return "epoch" in self.compiled.groupindex


class LogShapes:
    """Shapes in their order, searched by their words first."""

    def __init__(self, shapes: Sequence[Shape]) -> None:
        self._all = tuple(shapes)
        self._words = tuple(dict.fromkeys(shape.words[0] for shape in self._all))
        self._sets: dict[tuple[str, ...], tuple[Shape, ...]] = {}
        """The first words of a line → the shapes that may fit it."""

    def __iter__(self) -> Iterator[Shape]:
        return iter(self._all)

    def read(self, low: str) -> CounterReading | None:
        """Return the counter of a line in lower case, by the first shape that fits; None if no shape fits."""
        for shape in self._likely(tuple([word for word in self._words if word in low])):
            for word in shape.words[1:]:
                if word not in low:
                    break
            else:
                reading = shape.read(low)
                if reading is not None:
                    return reading
        return None

    def _likely(self, words: tuple[str, ...]) -> tuple[Shape, ...]:
        """Return the shapes with these first words, in their order."""
        known = self._sets.get(words)
        if known is None:
            if len(self._sets) >= _MAX_SETS:
                self._sets.clear()
            known = self._sets[words] = tuple(shape for shape in self._all if shape.words[0] in words)
        return known


@functools.cache
def known_shapes() -> LogShapes:
    """Return the shapes of the package's file, which is read once."""
    return load_shapes(_FILE)


def load_shapes(path: Path) -> LogShapes:
    """Return the shapes of a file, without wrong ones: then fewer programs' lines are understood, but no job ends."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    shapes = []
    try:
        entries = list(yaml.load(path.read_text("utf-8"), Loader=loader)["shapes"])  # noqa: S506 - both are safe loaders
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as e:
        entries = []
        reason = " ".join(str(e).split())
        print(f"srobust: no log lines are understood, because {path} cannot be read: {reason}", file=sys.stderr)
    for entry in entries:
        try:
            shapes.append(_shape(entry))
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            print(f"srobust: a shape in {path} is left out: {e!r} in {str(entry)[:80]}", file=sys.stderr)
    return LogShapes(shapes)


def _shape(entry: dict[str, Any]) -> Shape:
    examples = [line.partition(" = ") for line in entry["examples"].splitlines()]
    return Shape(
        entry["name"],
        entry["source"],
        tuple(entry["words"]),
        entry["pattern"],
        Counts(entry.get("counts", "")),
        entry.get("first_epoch"),
        int(entry.get("times", 1)),
        tuple((None if step == "-" else int(step), line) for step, _, line in examples),
    )


def _number(text: str | None) -> int | None:
    """Return `1,000` and `1.23k` as numbers; None if there is no number, or it is too large for a count."""
    if not text or len(text) > _MAX_DIGITS:
        return None
    if text.isdecimal():
        return int(text)
    unit = _UNITS.get(text[-1], 1)
    try:
        return round(float(text.rstrip("km").replace(",", "")) * unit)
    except ValueError:
        return None
