"""Encodes the state as lines of JSON, for the daemon's file and for the HTTP side, which decodes them. Pure.

A line is a whole snapshot, or one with `changed_nodes` instead of `nodes`: the rows that are others than in the line
before. Of thousands of nodes, most lines have none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec

T = TypeVar("T")

CHANGED_NODES = b'{"changed_nodes":['
"""Begins a line that has these instead of `nodes`: the HTTP side knows the other ones."""


class Snapshot(NamedTuple):
    """The state at one moment: that of the nodes, and all else."""

    state: dict[str, Any]
    nodes: Mapping[str, bytes]
    """The row of each node, by name: JSON, and the same object as long as it is the same."""

    def whole(self) -> bytes:
        """Return the snapshot as one line of JSON."""
        return encode(self.state)[:-1] + b',"nodes":[' + b",".join(self.nodes.values()) + b"]}"

    def changes(self, since: Mapping[str, bytes]) -> bytes | None:
        """Return the state with only the changed rows of nodes; None if nodes have come or gone."""
        if self.nodes.keys() != since.keys():
            return None
        rows = [row for name, row in self.nodes.items() if since[name] is not row] if self.nodes is not since else []
        return CHANGED_NODES + b",".join(rows) + b"]," + encode(self.state)[1:]


def encode(value: Any) -> bytes:
    """Return the value as JSON."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:  # half a character pair, in a text from outside
        return json.dumps(value, separators=(",", ":")).encode()


def decode(line: bytes, what: type[T]) -> T | None:
    """Decode the line; None if it has another form."""
    try:
        return msgspec.json.decode(line, type=what)
    except (msgspec.DecodeError, UnicodeError):
        try:  # half a character pair, which only the other one reads
            return msgspec.convert(json.loads(line), what)
        except (msgspec.ValidationError, ValueError):
            return None
