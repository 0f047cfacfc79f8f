"""What is left of a line without what differs each time: numbers, addresses, ids, folders, progress bars.

drain3 does this too, with trees of tokens that are compared one by one. Its last release is of 2022, and it takes about
as long for one line as `compress` for a hundred.
"""

from __future__ import annotations

import re

_VARIABLE = re.compile(
    r"(?P<id>\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b)"
    r"|(?P<time>\b\d{4}[-/]\d\d[-/]\d\d[T _]\d\d:\d\d:\d\d(?:[.,]\d+)?Z?)"
    r"|(?P<hex>\b0x[0-9a-fA-F]+\b|\b(?=[a-f]{0,40}\d)[0-9a-f]{8,}\b)"
    r"|(?P<path>(?<![\w/])(?:[a-z]{1,9}:/|~|\.{1,2})?(?:/[\w.+@%=~-]+)+/(?=[\w.]))"
    r"|(?P<bar>(?<=%)\s?\|[^|]{0,300}\||[█▏▎▍▌▋▊▉━╸╺#=]{3,}[>\s]*)"
    r"|(?P<n>(?<!\w)[+-]\d+(?:[.,:]\d+)*(?:[eE][+-]?\d+)?|\d+(?:[.,:]\d+)*(?:[eE][+-]?\d+)?)"
)
_NAMES = {name: f"<{name}>" for name in _VARIABLE.groupindex} | {"path": "<path>/"}
_BLANKS = re.compile(r"\s+")


def template_of(line: str) -> str:
    """The line with its variable parts as `<n>`, `<hex>`, `<id>`, `<time>`, `<path>/` and `<bar>`, blanks as one space.

    The last part of a path stays: two source files are two templates. Lines that differ only in digits have the same
    template.
    """
    return _BLANKS.sub(" ", _VARIABLE.sub(lambda m: _NAMES[m.lastgroup or "n"], line)).strip()
