"""On which line of a YAML text stands a value? Errors and warnings about a configuration name the line."""

from __future__ import annotations

from collections.abc import Sequence

import yaml


def line_of(text: str, keys: Sequence[str]) -> int:
    """Return the line (from 1) of the value at `keys`; the line of the nearest parent if the value is not found."""
    node: yaml.Node | None = yaml.compose(text)
    line = node.start_mark.line + 1 if node is not None else 1
    for key in keys:
        if not isinstance(node, yaml.MappingNode):
            break
        for name, value in node.value:
            if name.value == key:
                node, line = value, name.start_mark.line + 1
                break
        else:
            break
    return line
