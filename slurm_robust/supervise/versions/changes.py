"""Compares two versions of the code: figures, and a unified diff of bounded size."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_MAX_DIFF = 1 << 20
_MAX_FILE = 256 << 10
_MAX_LINES = 5000


@dataclass(frozen=True)
class CodeChanges:
    """The difference between a version and the one before.

    Attributes:
        added: Files that only the new version has.
        removed: Files that only the old version has.
        changed: Files that differ.
        lines_added: Lines that the diff adds; files whose lines are not compared are left out.
        lines_removed: Lines that the diff removes.
    """

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    lines_added: int = 0
    lines_removed: int = 0

    @property
    def any(self) -> bool:
        """Whether anything differs."""
        return bool(self.added or self.removed or self.changed)

    @property
    def text(self) -> str:
        """A summary in a few words: `2 files changed, 1 added (+10 -3 lines)`."""
        counts = ((len(self.changed), "changed"), (len(self.added), "added"), (len(self.removed), "removed"))
        words = [f"{n} file{'s' if n > 1 else ''} {what}" for n, what in counts if n]
        if not words:
            return "no file differs"
        return f"{', '.join(words)} (+{self.lines_added} -{self.lines_removed} lines)"


def compare(
    old: Path, new: Path, old_digests: Mapping[str, str], new_digests: Mapping[str, str]
) -> tuple[CodeChanges, str]:
    """Compare two versions by the digests of their files; returns the changes, and the diff as text."""
    added = tuple(sorted(new_digests.keys() - old_digests.keys()))
    removed = tuple(sorted(old_digests.keys() - new_digests.keys()))
    both = sorted(old_digests.keys() & new_digests.keys())
    changed = tuple(path for path in both if old_digests[path] != new_digests[path])
    parts: list[str] = []
    size = plus = minus = 0
    for path in sorted((*changed, *added, *removed)):
        for line in _of_file(
            old / path if path not in added else None, new / path if path not in removed else None, path
        ):
            plus += line.startswith("+") and not line.startswith("+++ ")
            minus += line.startswith("-") and not line.startswith("--- ")
            size += len(line)
            if size <= _MAX_DIFF:
                parts.append(line)
    if size > _MAX_DIFF:
        parts.append(f"The rest of this diff is left out: it has {size} characters, {_MAX_DIFF} are kept.\n")
    return CodeChanges(added, removed, changed, plus, minus), "".join(parts)


def _of_file(old: Path | None, new: Path | None, path: str) -> Iterator[str]:
    before, after = _lines(old), _lines(new)
    if before is None or after is None:
        yield f"{path} differs; its lines are not compared (binary, or too large)\n"
        return
    names = (f"a/{path}" if old is not None else "/dev/null", f"b/{path}" if new is not None else "/dev/null")
    for line in difflib.unified_diff(before, after, *names):
        yield line if line.endswith("\n") else f"{line}\n"


def _lines(path: Path | None) -> list[str] | None:
    """Return the lines of a file, empty for no file; None if they are not compared."""
    if path is None:
        return []
    with path.open("rb") as f:
        content = f.read(_MAX_FILE + 1)
    if len(content) > _MAX_FILE or b"\0" in content:
        return None
    lines = content.decode("utf-8", "replace").splitlines(keepends=True)
    return lines if len(lines) <= _MAX_LINES else None
