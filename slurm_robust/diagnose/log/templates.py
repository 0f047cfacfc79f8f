"""Replaces the parts of a line that differ each time: numbers, addresses, ids, folders, progress bars.

drain3 does this too, with a tree of tokens that are compared one by one. Its last release is of July 2022.
"""

from __future__ import annotations

import re
from functools import lru_cache

_BAR = re.compile(r"\|[^|]{0,300}\||[█▏▎▍▌▋▊▉━╸╺#=]{3,}[>\s]{0,300}")
_VARIABLE = re.compile(
    r"(?P<id>\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b)"
    r"|(?P<hex>\b\dx[0-9a-fA-F]+\b|\b(?=[a-f]{0,40}\d)(?=\d{0,40}[a-f])[0-9a-f]{8,}\b)"
    r"|(?P<path>(?<![\w/])(?:[a-z]{1,9}:/|~|\.{1,2})?(?:/[\w.+@%=~-]+)+/(?=[\w.]))"
    r"|(?P<n>(?<!\w)[+-]\d+(?:[.,:/-]\d+)*(?:[eE][+-]?\d+)?|\d+(?:[.,:/-]\d+)*(?:[eE][+-]?\d+)?)"
)
_NAMES = {name: f"<{name}>" for name in _VARIABLE.groupindex} | {"path": "<path>/"}
_MAYBE = re.compile(r"[\d/]")
_CACHED_TOKENS, _CACHED_CHARS = 1 << 14, 64


def template_of(line: str) -> str:
    """Return the line with its variable parts as `<n>`, `<hex>`, `<id>`, `<path>/` and `<bar>`, and single spaces.

    The last part of a path stays: two source files are two templates. Lines that differ only in digits have the same
    template.
    """
    if "|" in line or "==" in line or "━" in line:
        line = _BAR.sub("<bar>", line)
    return " ".join(
        [
            token if token.isalpha() else _short(token) if len(token) < _CACHED_CHARS else _token(token)
            for token in line.split()
        ]
    )


def _token(token: str) -> str:
    if _MAYBE.search(token) is None:
        return token
    return _VARIABLE.sub(lambda m: _NAMES[m.lastgroup or "n"], token)


_short = lru_cache(maxsize=_CACHED_TOKENS)(_token)
