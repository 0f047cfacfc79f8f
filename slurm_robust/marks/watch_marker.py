"""Reads and writes the watch marker: it says in a node's `Extra` which mode and build the node watch has.

`[[srobust-watch mode=act]] [[srobust-watch-build 3fa2c1d0]]`. The node watch writes it once, also in observe mode, and
again when its mode or build changes; the daemon only reads it, to show in `srobust status` where it differs from its
own. The marker has no time in it: Slurm lists equal nodes together, and a time would make all of them differ. Standard
library only.
"""

from __future__ import annotations

import re

from slurm_robust.marks import field_text

_MARKER = re.compile(r"\[\[srobust-watch mode=([a-z]{1,16})\]\]")
_BUILD = re.compile(r"\[\[srobust-watch-build ([0-9a-z]{1,16})\]\]")
"""A marker of its own: daemons of older versions read the mode from the other one all the same."""
_ANY = field_text.marker("watch")


def parse(extra: str) -> str:
    """Return the mode that the last marker in this text names; empty if no marker names a mode. Never raises."""
    found = _MARKER.findall(extra)
    return found[-1] if found else ""


def parse_build(extra: str) -> str:
    """Return the build that the last marker in this text names; empty if no marker names a build. Never raises."""
    found = _BUILD.findall(extra)
    return found[-1] if found else ""


def without(extra: str) -> str:
    """Return the text without any watch marker, as Slurm takes it."""
    return field_text.without(_ANY, extra)


def render(mode: str, extra: str = "", build: str = "") -> str:
    """Return the text with these markers in place of every watch marker in it; what else stands there stays."""
    marker = f"[[srobust-watch mode={mode}]]" + (f" [[srobust-watch-build {build}]]" if build else "")
    return f"{without(extra)} {marker}".lstrip()
