"""Follows Python's tracebacks through the lines of a log in which several ranks and loggers may print in turn."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from slurm_robust.diagnose.lines import is_carets, is_code, place_of, speaker_of

BEGINS = "Traceback (most recent call last)"
_CHAINS = ("During handling of the above exception", "The above exception was the direct cause")
_REPORTS = ("Exception ignored in", "Error in atexit._run_exitfuncs", "Error in sys.excepthook")
CHAINED = re.compile("|".join(_CHAINS))
_HARMLESS = re.compile("|".join(map(re.escape, _REPORTS)))
MARKS = (BEGINS, 'File "', "frame #", *_CHAINS, *_REPORTS)
"""Each line that begins a traceback, belongs to it, or connects it with another has one of these texts."""
_NAMED = re.compile(
    r"^(?:[A-Za-z_]\w*\.)*\w*(?:Error|Exception|Interrupt|Failure|Expired|Iteration|Timeout)(?::|\(|\s*$)"
    r"|^(?:[a-z_]\w*\.)+[A-Z]\w*\s*$"
)
"""The name of an exception's class. One with its module and nothing else is no line that anybody prints otherwise."""
_AFTER_CODE = re.compile(r"^(?:(?:[A-Za-z_]\w*\.)+[A-Za-z_]\w*(?::\s|\s*$)|[A-Z]\w+:\s)")
"""Directly after a traceback's last place, any name of a class is the exception's."""
_TELLING = re.compile(r'File "[^"]*?\b(multiprocessing/\w+\.py)"')
"""Libraries in which a usual exception means something else than elsewhere."""
_LOADS = re.compile(r'torch/serialization\.py", line \d+, in (?:load|_load|_legacy_load)\b')
_TORCH_LOAD = "torch.load"
"""The same of what is raised below this call: it reads a checkpoint."""
_RAISES = re.compile(r"^\s*raise (?:\w+\.)*(\w+)\(?")
_ASSERTS = re.compile(r"^\s*assert[\s(]")
_OF_DEVICE = re.compile(
    r"\.(?:item|all|any|cpu|tolist|synchronize)\(|\b(?:isnan|isfinite|isinf|allclose|equal|dist|cuda)\b"
)
"""Matches code that may wait for a device, and raise an error of the device."""
_BOX = ("│", "╭", "╰", "└")
"""Rich and loguru draw code and values in boxes."""
_DIGITS = re.compile(r"\d")
_SPEAKERS = 4096


@dataclass
class _Traceback:
    """The state of one speaker."""

    open: bool = False
    prefix: str = ""
    after_place: bool = False
    place: str = ""
    code: str = ""
    own: bool = False
    """The last place is the program's own."""
    library: str = ""
    chained: bool = False
    harmless: bool = False
    last_weight: int | None = None
    cut: CutTraceback | None = None


class CutTraceback(NamedTuple):
    """A traceback of which the last line is missing.

    Attributes:
        line: Its last line in the log.
        number: The number of that line.
        place: The innermost place that is the program's own; empty without one.
        raises: The class that the code at its end raises: `AssertionError` if the program asserts something there,
            `Exception` if not known.
    """

    line: str
    number: int
    place: str
    raises: str


class Tracebacks:
    """Reads lines in their order, and relates each line to its speaker's traceback.

    Attributes:
        ends: Whether the last read line ends a traceback: it is the exception.
    """

    def __init__(self) -> None:
        self._of: dict[str, _Traceback] = {}
        self._now = _Traceback()
        self.ends = False

    def read(self, text: str, line: str, number: int = 0) -> str | None:
        """Return the message in a line; None if it belongs to a traceback and tells nothing by itself.

        Args:
            text: The line without launchers' labels.
            line: The plain line.
            number: The number of the line, for `cut`.
        """
        now = self._speaker(line[: len(line) - len(text)])
        self.ends = False
        if (begins := text.find(BEGINS)) >= 0:
            now.open, now.prefix, now.after_place, now.place, now.library = True, text[:begins], False, "", ""
            now.code, now.cut = "", None
            return None
        if now.prefix and _same_shape(text[: len(now.prefix)], now.prefix):
            text = text[len(now.prefix) :]
        if not text.strip():
            now.after_place = False
            return None
        if _shows_place(text, now):
            if now.open:
                now.cut = CutTraceback(line, number, now.place, _raised_by(text, now))
            return None
        if _joins(text, now):
            return None
        after, now.after_place = now.after_place, False
        self.ends = now.open and bool(_NAMED.match(text) or (after and _AFTER_CODE.match(text)))
        return text

    @property
    def cut(self) -> CutTraceback | None:
        """The first traceback that is still open after the very last line; None if all have ended."""
        return min((t.cut for t in self._of.values() if t.open and t.cut and not t.harmless), default=None, key=_number)

    @property
    def place(self) -> str:
        """The innermost place of the traceback that is the program's own; empty without one."""
        return self._now.place

    @property
    def code(self) -> str:
        """The line of code that the traceback shows last; empty without one."""
        return self._now.code

    @property
    def handled(self) -> int | None:
        """The weight of the exception that was being handled when this one was raised; None without one."""
        return self._now.last_weight if self._now.chained else None

    @property
    def harmless(self) -> bool:
        """The interpreter only reports the exception and goes on."""
        return self._now.harmless and self._now.open

    def with_place(self, text: str) -> str:
        """Return the exception as rules see it: after the library that raised it, if it has another meaning there."""
        return f"{self._now.library}: {text}" if self._now.library else text

    def end(self, weight: int) -> None:
        """Note that the traceback has ended with an exception of this weight."""
        now = self._now
        now.last_weight = weight if now.last_weight is None or not now.chained else max(weight, now.last_weight)
        now.open = now.chained = now.harmless = False
        now.place = now.code = now.library = ""

    def _speaker(self, label: str) -> _Traceback:
        who = speaker_of(label)
        if who not in self._of:
            if len(self._of) >= _SPEAKERS:
                self._of.clear()
            self._of[who] = _Traceback()
        self._now = self._of[who]
        return self._now


def _raised_by(code: str, now: _Traceback) -> str:
    """Return the class that a line of code most likely raises; `Exception` if not known."""
    if (raises := _RAISES.match(code)) is not None:
        return raises[1]
    asserts = now.own and _ASSERTS.match(code) is not None and _OF_DEVICE.search(code) is None
    return "AssertionError" if asserts else "Exception"


def _shows_place(text: str, now: _Traceback) -> bool:
    """Return whether the line is a place of a stack, or the code there."""
    if (place := place_of(text)) is not None:
        telling = _TELLING.search(text)
        below_load = not place and (now.library == _TORCH_LOAD or _LOADS.search(text) is not None)
        now.library = _TORCH_LOAD if below_load else telling[1] if telling else ""
        now.after_place, now.place = True, place or now.place
        now.code, now.own = "", bool(place)
        return True
    boxed = now.open and text.lstrip().startswith(_BOX)
    if now.after_place and is_code(text):
        now.code = now.code if is_carets(text) else text
        return True
    return boxed or _RAISES.match(text) is not None


def _joins(text: str, now: _Traceback) -> bool:
    """Return whether the line connects the next traceback with the last one."""
    if "xception" not in text and "Error in" not in text:
        return False
    chained, harmless = CHAINED.search(text) is not None, _HARMLESS.search(text) is not None
    if chained:
        now.chained = now.last_weight is not None
    now.harmless = now.harmless or harmless
    return chained or harmless


def _number(cut: CutTraceback) -> int:
    return cut.number


def _same_shape(one: str, other: str) -> bool:
    return len(one) == len(other) and (one == other or _DIGITS.sub("0", one) == _DIGITS.sub("0", other))
