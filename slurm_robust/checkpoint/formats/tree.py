"""Shows a checkpoint's folder to the formats: its file names, and the content of its small files."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from slurm_robust.checkpoint.base import files
from slurm_robust.checkpoint.formats import inert, torchfile

FileProblem = tuple[str, str]
"""(file relative to the tree's folder, what is wrong with it)."""
_SMALL_BYTES = 1 << 30


class FormatReport(msgspec.Struct, kw_only=True):
    """What a format recognises in a folder.

    Attributes:
        step: None if it does not tell.
        world_size: Ranks that wrote it; 0 if it does not tell.
        problems: Files that are missing, too short, or do not fit together.
        of_torch: Files that `torch.save` wrote, whatever they look like.
    """

    format: str
    step: int | None = None
    world_size: int = 0
    problems: list[FileProblem] = []
    of_torch: list[str] = []


class Tree:
    """A folder.

    Attributes:
        folder: Where it is.
        names: Every file below it, relative, with `/`.
        files: Those that lie in it directly.
        name: What it is called.
    """

    def __init__(self, folder: Path, names: list[str]) -> None:
        self.folder = folder
        self.names = frozenset(names)
        self.files = frozenset(name for name in names if "/" not in name)
        self.name = folder.name
        self._contents: dict[str, Any] = {}

    def folders(self) -> frozenset[str]:
        """Names of the folders that lie in it directly."""
        return frozenset(name.partition("/")[0] for name in self.names - self.files)

    def size_bytes(self, name: str) -> int:
        """Of a file. Raises OSError if it is not there."""
        return (self.folder / name).stat().st_size

    def read(self, name: str) -> bytes:
        """All of a small file. Raises OSError if it cannot be read."""
        with files.named(self.folder / name):
            return (self.folder / name).read_bytes()

    def text(self, name: str) -> str:
        """What a small file says, stripped; empty if it is not there. Raises OSError if it cannot be read."""
        if name not in self.names:
            return ""
        with files.named(self.folder / name), (self.folder / name).open("rb") as file:
            return file.read(4096).decode(errors="replace").strip()

    def json(self, name: str) -> Any:
        """What a JSON file holds; None if it is not there or damaged (which is told of the file itself).

        Raises:
            OSError: it cannot be read.
        """
        if name not in self.names or self.size_bytes(name) > _SMALL_BYTES:
            return None
        try:
            return json.loads(self.read(name))
        except (ValueError, RecursionError):
            return None

    def saved(self, name: str, *, keep: bool = True) -> Any:
        """What a `torch.save` file holds, as husks; None if it is not there, or cannot be understood.

        If `keep`, it is remembered for the next who asks; thousands of ranks' would take too much. Raises OSError if it
        cannot be read.
        """
        if name in self._contents:
            return self._contents[name]
        value = None
        if name in self.names:
            with files.named(self.folder / name), (self.folder / name).open("rb") as file:
                content = torchfile.read(file, whole=False)
            value = content.value if content is not None else None
        if keep:
            self._contents[name] = value
        return value


def of_other_steps(tree: Tree, names: Iterable[str], key: str, step: int | None) -> list[FileProblem]:
    """Files that say themselves that they are of another step: a save over an older one that did not finish.

    `key` is what the files, `names`, call it (`iteration`, `global_steps`), `step` what the first of them says; nothing
    is compared where that is None. Raises OSError if one cannot be read.
    """
    wrong: list[FileProblem] = []
    for name in names if step is not None else ():
        own_step = inert.number(tree.saved(name, keep=False), key)
        if own_step is not None and own_step != step:
            wrong.append((name, f"of step {own_step}, the first rank's is of {step}"))
    return wrong


def gaps(found: set[int], count: int | None = None) -> list[int]:
    """Numbers missing from 0 up to `count`, or up to the highest that was found."""
    upto = max(found, default=-1) + 1 if count is None else count
    return [n for n in range(upto) if n not in found]
