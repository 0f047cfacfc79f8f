"""Makes lines of a log readable for rules: removes colours, and the labels of launchers and loggers."""

from __future__ import annotations

import re

MAX_CHARS = 2000
"""Longer lines are cut: no message needs more."""
_COLOURS = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07]*(?:\x07|$)|[()][A-Za-z0-9])")
_TIME = r"\[?\d{4}-\d\d-\d\d[T _]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?"
_DATE = r"[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}(?=\[)|\d\d:\d\d:\d\d(?:[.,]\d+ | (?=[\[(A-Z]))"
_RANK = r"\[?(?:default|rank)\d+\]?|\[\d+(?:,[^\]\s]{1,40})?\](?:<std(?:err|out)>)?|\[?[Rr]ank[ _=]?\d+\]?"
_ACTOR = r"\([^()]*\bpid=\d+[^()]*\)"
_HOST = r"(?!\S*(?:Error|Exception|Failure): )[\w.-]{1,40}: (?=\[?rank|Traceback|\[\d)"
_LEVEL = r"(?:INFO|WARNING|ERROR|CRITICAL|DEBUG)"
_LOGGER = rf"- [\w.]{{1,60}} - {_LEVEL} - |{_LEVEL} \d\d-\d\d \d\d:\d\d:\d\d \[?[\w./]+:\d+\] "
_COLLECTOR = r"[\w./-]{1,60} +\| |[0-9a-f]{8} (?:\[rank=\d+\] )?\|\| |std(?:err|out): |[\w.-]{1,60}/\d+ (?=\[)"
_LABELS = re.compile(
    rf"^\s*(?:(?:\d{{1,6}}: |(?:{_RANK}|{_ACTOR}):? ?|{_TIME}[:,]? ?|{_DATE}|{_HOST}|{_LOGGER}|{_COLLECTOR}))+"
)
"""Matches labels of srun, torchrun, mpirun, Ray, loggers, and collectors of containers' output."""
_CLOCK = re.compile(rf"{_TIME}|\d\d:\d\d:\d\d(?:[.,]\d+)?")
_FRAME = re.compile(r'^[\s>]*File "(?P<file>[^"]*)", line \d+(?:, in (?P<function>\S+))?|^frame #\d|^\s+at \S+\(')
_LIBRARY = re.compile(r"site-packages|dist-packages|/lib/python\d|^<|/torch/|frozen ")
_VALUES = (
    (re.compile(r"0x[0-9a-f]+", re.IGNORECASE), "#"),
    (re.compile(r"(?<![\w.])/[^\s:'\",)\]]+"), "/…"),
    (re.compile(r"\b(?=[a-f]*\d)[0-9a-f]{8,}\b", re.IGNORECASE), "#"),
    (re.compile(r"\d+"), "#"),
)
OURS = re.compile(r"srobust(?: [\w-]+)?(?:\[\d+\])?: |slurm_robust(?:\.\w+)*: |\{\"at_s\": [\d.]+, \"kind\": ")
"""The beginning of a line of ours: the story, messages of our other commands, and `story.jsonl`.

It may be anywhere in a line: a progress bar ends without a newline, and labels or times may precede it.
"""
STORY = re.compile(r"srobust: (\d\d):(\d\d):(\d\d) ")
"""The same of the story, with its time of day."""
_CARETS = re.compile(r"^\s*[\^~]{2,}\s*$")


def plain(line: str) -> str:
    """Return a line without colours and control characters, cut to `MAX_CHARS`."""
    line = line[:MAX_CHARS]
    if "\x1b" in line:
        line = _COLOURS.sub("", line)
    return line.replace("\x00", "").rstrip("\r\n")


def unlabelled(line: str) -> str:
    """Return a plain line without the labels before it: `[rank3]: KeyError: 'x'` becomes `KeyError: 'x'`."""
    return _LABELS.sub("", line, count=1)


def speaker_of(label: str) -> str:
    """Return who prints lines with this label: the label without its time."""
    return _CLOCK.sub("", label).strip() if ":" in label else label


def place_of(text: str) -> str | None:
    """Return the place of a stack that this unlabelled line shows: `train.py:loss`, empty in a library; else None.

    The next line, if it is indented, shows the code there.
    """
    found = _FRAME.match(text)
    if found is None:
        return None
    if not found["file"] or _LIBRARY.search(found["file"]):
        return ""
    return f"{found['file'].rpartition('/')[2]}:{found['function'] or '<module>'}"


def is_code(text: str) -> bool:
    """Return whether an unlabelled line after a place is the code there: it may name errors that did not happen."""
    return text.startswith("    ") or is_carets(text)


def is_carets(text: str) -> bool:
    """Return whether an unlabelled line only points at the code above it."""
    return _CARETS.match(text) is not None


def without_values(text: str) -> str:
    """Return a message with addresses, paths and numbers replaced, so that equal messages become equal texts."""
    for pattern, instead in _VALUES:
        text = pattern.sub(instead, text)
    return " ".join(text.split())
