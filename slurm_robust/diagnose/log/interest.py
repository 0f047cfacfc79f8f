"""Says which lines must never be lost, even routine ones: by the caller's words, a predicate, or both."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from slurm_robust.diagnose.log.lines import key_of

USUAL_WORDS = (
    *(b"error", b"exception", b"traceback", b"fail", b"fatal", b"abort", b"critical", b"panic", b"assert", b"denied"),
    *(b"out of memory", b"oom", b"no space", b"killed", b"terminated", b"segmentation", b"core dumped", b"bus error"),
    *(b"timeout", b"timed out", b"refused", b"reset by peer", b"unreachable", b"stale", b"corrupt", b"mismatch"),
    *(
        b"xid",
        b"ecc",
        b"nan",
        b"unhandled",
        b"cannot",
        b"could not",
        b"unable to",
        b"not found",
        b"no such",
        b"invalid",
    ),
    *(b"cancelled", b"preempt", b"requeue", b"read-only", b"quota", b"expired", b"unauthorized", b"forbidden"),
)
"""For callers that have no rules of their own."""


@dataclass(frozen=True)
class Interest:
    """The caller's choice of lines.

    A line is interesting if it contains one of the words (if there are any) and the predicate accepts it (if there is
    one). The page shows the first interesting line of each template and speaker, and how many there were.

    Attributes:
        words: Looked for in the raw line, in upper or lower case unless `ignore_case` is False. Their digits matter.
        accepts: Gets the decoded line without colours and rank labels (long lines: each piece). Returns a falsy value
            to refuse it; a true one, best the name of a rule, to accept. Lines of one template with different names are
            entries of their own. An exception that it raises ends the whole reading.
        digits_matter: The predicate may tell lines apart by their digits, so that it is asked for each line that
            contains a word (without words, for each line: a microsecond a line and more). False: it is asked once for
            all lines that differ in digits only.
        ignore_case: See `words`.
    """

    words: tuple[bytes, ...] = USUAL_WORDS
    accepts: Callable[[str], object] | None = None
    digits_matter: bool = True
    ignore_case: bool = True


_RARE = 4
"""So many templates with one word, or of one name, are each worth keeping for ever."""
_NAMES = 4096


class LineFilter:
    """Asks an `Interest` as rarely as possible: lines with one key contain equal words, except for digits."""

    def __init__(self, interest: Interest) -> None:
        """Prepare the words. Raise ValueError if a word is empty or has a line's end: it would match all or nothing."""
        if any(not word or set(word) & set(b"\r\n\0") for word in interest.words):
            raise ValueError("a word to look for is empty or contains a line's end or NUL: give words of one line")
        self._interest = interest
        words = dict.fromkeys(word.lower() if interest.ignore_case else word for word in interest.words)
        digits = [word for word in words if re.search(rb"\d", word)]
        self._plain = any_of(word for word in words if word not in digits)
        self._masked, self._digits = any_of(map(key_of, digits)), any_of(digits)
        self._times: dict[bytes | str, int] = {}
        """How many templates had a word, or a name."""

    def of_key(self, key: bytes) -> bool | None:
        """Return whether all lines with this key are candidates, or none is; None if each has to be asked."""
        key = key.lower() if self._interest.ignore_case else key
        if self._plain is not None and self._plain.search(key):
            return True
        if self._masked is not None and self._masked.search(key):
            return None
        return self._plain is None and self._masked is None and self._interest.accepts is not None

    def each_line(self, candidate: bool | None, key: bytes) -> bool:
        """Return whether `name` may differ between lines with this key, for which `of_key` gave `candidate`."""
        if candidate is False or b"0" not in key:
            return False
        return candidate is None or (self._interest.accepts is not None and self._interest.digits_matter)

    def name(self, candidate: bool | None, line: bytes, text: str) -> str:
        """Return what accepted this line, empty if nothing did; `text` is the line for the predicate."""
        if candidate is None:
            line = line.lower() if self._interest.ignore_case else line
            candidate = self._digits is not None and self._digits.search(line) is not None
        if not candidate:
            return ""
        if self._interest.accepts is None:
            return "word"
        answer = self._interest.accepts(text)
        return (str(answer) or "accepted") if answer else ""

    def is_rare(self, line: bytes, name: str) -> bool:
        """Return whether a new template is one of the first with a word, or of its name. Call it once for each.

        Millions of lines with one word must not push out the only line with another word.
        """
        line = line.lower() if self._interest.ignore_case else line
        causes: list[bytes | str] = [name] if self._interest.accepts is not None else []
        for pattern in (self._plain, self._digits):
            causes += set(pattern.findall(line)) if pattern is not None else ()
        rare = False
        for cause in causes:
            times = self._times.get(cause, 0)
            if times < _RARE and (times or len(self._times) < _NAMES):
                self._times[cause] = times + 1
                rare = True
        return rare


def any_of(words: Iterable[bytes]) -> re.Pattern[bytes] | None:
    """Return a pattern that finds any of these words, the shortest of those with one beginning; None for no words.

    Words with a common beginning share it in the pattern: for hundreds of words that is ten times as fast as searching
    for each word, or for an alternation of whole words.
    """
    tree = _tree(words)
    return re.compile(_pattern(tree)) if tree else None


def longest_at(words: Iterable[bytes]) -> re.Pattern[bytes] | None:
    """Return a pattern whose group 1 is, at each place of a line, the longest of these words; None for no words."""
    tree = _tree(words)
    return re.compile(b"(?=(" + _pattern(tree, longest=True) + b"))") if tree else None


def _tree(words: Iterable[bytes]) -> dict[int, Any]:
    tree: dict[int, Any] = {}
    for word in words:
        node = tree
        for byte in word:
            node = node.setdefault(byte, {})
        node[_END] = {}
    return tree


def _pattern(tree: dict[int, Any], *, longest: bool = False) -> bytes:
    may_end = _END in tree
    if may_end and not (longest and len(tree) > 1):  # a longer word with this beginning finds nothing more
        return b""
    parts = []
    for byte, node in tree.items():
        if byte == _END:
            continue
        part, rest = bytes([byte]), node
        while len(rest) == 1 and _END not in rest:  # without branches no depth
            ((only, rest),) = rest.items()
            part += bytes([only])
        parts.append(re.escape(part) + _pattern(rest, longest=longest))
    pattern = parts[0] if len(parts) == 1 and not may_end else b"(?:" + b"|".join(parts) + b")"
    return pattern + b"?" if may_end else pattern


_END = -1
