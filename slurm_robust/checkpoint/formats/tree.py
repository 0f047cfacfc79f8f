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
"""The file relative to the tree's folder, and what is wrong with it."""
_SMALL_BYTES = 1 << 30


class FormatReport(msgspec.Struct, kw_only=True):
    """The findings of one format in a folder.

    Attributes:
        step: The step of the checkpoint; None if the files do not tell.
        world_size: Number of ranks that wrote it; 0 if the files do not tell.
        problems: Files that are missing, too short, or do not fit together.
        of_torch: Files that `torch.save` must have written, even if their bytes look different.
    """

    format: str
    step: int | None = None
    world_size: int = 0
    problems: list[FileProblem] = []
    of_torch: list[str] = []


class Tree:
    """The folder of a checkpoint, with its file names.

    Attributes:
        folder: The path of the folder.
        names: Every file below the folder, relative, with `/`.
        files: The files that lie directly in the folder.
        name: The folder's name.
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
        """Return the size of a file. Raises OSError if the file does not exist."""
        return (self.folder / name).stat().st_size

    def read(self, name: str) -> bytes:
        """Return all bytes of a small file. Raises OSError if the file cannot be read."""
        with files.named(self.folder / name):
            return (self.folder / name).read_bytes()

    def text(self, name: str) -> str:
        """Return the text of a small file, stripped; empty if there is no such file.

        Raises OSError if it cannot be read.
        """
        if name not in self.names:
            return ""
        with files.named(self.folder / name), (self.folder / name).open("rb") as file:
            return file.read(4096).decode(errors="replace").strip()

    def json(self, name: str) -> Any:
        """Return the content of a JSON file; None if the file is missing or damaged (damage is reported separately).

        Raises:
            OSError: the file cannot be read.
        """
        if name not in self.names or self.size_bytes(name) > _SMALL_BYTES:
            return None
        try:
            return json.loads(self.read(name))
        except (ValueError, RecursionError):
            return None

    def saved(self, name: str, *, keep: bool = True) -> Any:
        """Return the content of a `torch.save` file, as husks; None if the file is missing or cannot be understood.

        If `keep`, the content is remembered for the next call; the contents of thousands of ranks would take too much
        memory. Raises OSError if the file cannot be read.
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
    """Return the files that name another step: a save over an older checkpoint that did not finish.

    `names` are the files, and `key` is their name for the step (`iteration`, `global_steps`). `step` is the step in the
    first file; if it is None, nothing is compared. Raises OSError if a file cannot be read.
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
