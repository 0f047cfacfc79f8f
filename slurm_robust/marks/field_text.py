"""Finds, removes and writes the texts of markers in Slurm's fields. Standard library only."""

from __future__ import annotations

import re

from slurm_robust.core.text import printable


def marker(name: str) -> re.Pattern[str]:
    """Return the pattern of any marker of this name: also of another version, and one that cannot be read."""
    return re.compile(rf"\s{{0,8}}\[\[srobust-{name}[^\[\]]{{0,1000}}\]\]")


def without(markers: re.Pattern[str], field: str) -> str:
    """Return the field without these markers, with a space for each control character, which Slurm does not take."""
    return printable(markers.sub("", field), " ").strip()


def sentence(text: str, most_chars: int) -> str:
    """Return one line of printable ASCII without brackets, of so many characters at most."""
    line = "".join(c if c.isascii() and c.isprintable() else "?" for c in " ".join(text.split()))
    return line.replace("[", "(").replace("]", ")")[:most_chars].strip()
