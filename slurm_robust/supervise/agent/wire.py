"""Writes and reads the channel's lines: a mark and a JSON object, cut into numbered pieces if it is long.

Slurm passes on lines of up to about 1,000 bytes unchanged; it cuts longer lines, and mixes them with lines of other
nodes. Both ends use this module. A line without the mark, or a line that does not parse, is skipped and counted.
"""

from __future__ import annotations

import json
from typing import Any, Iterator

MARK = "~SR1 "
PIECE_MARK = "~SRP1 "
LINE_MAX_BYTES = 1000
_CHUNK = 900
MAX_PIECES = 65536
"""About 56 MB: more than any node's capture, and not too much for the supervisor's memory."""
MAX_OPEN = 4096


def encode(sender: str, number: int, message: dict[str, Any]) -> Iterator[str]:
    """Yield the lines (without newline) that carry `message`.

    The sender is a node, without spaces; its messages have different numbers. ASCII escapes make a character a byte.
    """
    body = json.dumps(message, separators=(",", ":"))
    if len(MARK) + len(body) <= LINE_MAX_BYTES:
        yield MARK + body
        return
    total = (len(body) + _CHUNK - 1) // _CHUNK
    if total > MAX_PIECES:
        raise ValueError(f"a message of {len(body)} bytes is too long for the channel")
    for i in range(total):
        yield f"{PIECE_MARK}{sender} {number} {i} {total} {body[i * _CHUNK : (i + 1) * _CHUNK]}"


class Decoder:
    """Makes objects of lines. `skipped` counts the lines that were foreign or garbled."""

    def __init__(self) -> None:
        self.skipped = 0
        self._open: dict[tuple[str, int], dict[int, str]] = {}

    def feed(self, line: str) -> dict[str, Any] | None:
        """Take one line; return an object if the line completes one."""
        try:
            return self._take(line.rstrip("\r\n"))
        except (ValueError, RecursionError):
            self.skipped += 1
            return None

    def _take(self, line: str) -> dict[str, Any] | None:
        if line.startswith(MARK):
            return _parsed(line[len(MARK) :])
        if not line.startswith(PIECE_MARK):
            raise ValueError("foreign")
        sender, *numbers, chunk = line[len(PIECE_MARK) :].split(" ", 4)
        number, index, total = map(int, numbers)
        if not 0 <= index < total <= MAX_PIECES:
            raise ValueError("no such piece")
        pieces = self._open.setdefault((sender, number), {})
        pieces[index] = chunk
        if len(pieces) < total:
            while len(self._open) > MAX_OPEN:  # pieces lost for good must not pile up
                del self._open[next(iter(self._open))]
            return None
        del self._open[(sender, number)]
        if sorted(pieces) != list(range(total)):
            raise ValueError("pieces of several messages")
        return _parsed("".join(pieces[i] for i in range(total)))


def _parsed(body: str) -> dict[str, Any]:
    message = json.loads(body)
    if isinstance(message, dict) and isinstance(message.get("t"), str):
        return message
    raise ValueError("not a message")
