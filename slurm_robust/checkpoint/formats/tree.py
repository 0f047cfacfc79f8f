"""A folder of a checkpoint as the formats see it: names below it, and what its small files say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from slurm_robust.checkpoint.formats import torchfile

Wrong = tuple[str, str]
"""(file relative to the tree's folder, what is wrong with it)."""
_SMALL_BYTES = 1 << 30


class Told(msgspec.Struct, kw_only=True):
    """What a format says of a folder.

    Attributes:
        step: None where it does not tell.
        world_size: Ranks that wrote it; 0 where it does not tell.
        problems: Files that are missing, too short, or do not fit together.
    """

    format: str
    step: int | None = None
    world_size: int = 0
    problems: list[Wrong] = []


class Tree:
    """A folder, or the single file `path.name` in it.

    Attributes:
        folder: Where it is.
        names: Every file below it, relative, with `/`.
        files: Those that lie in it directly.
        name: What it is called, or what the single file is.
    """

    def __init__(self, folder: Path, names: list[str], name: str = "") -> None:
        self.folder = folder
        self.names = frozenset(names)
        self.files = frozenset(name for name in names if "/" not in name)
        self.name = name or folder.name
        self._contents: dict[str, torchfile.Content | None] = {}

    def folders(self) -> frozenset[str]:
        """Names of the folders that lie in it directly."""
        return frozenset(name.partition("/")[0] for name in self.names - self.files)

    def size_bytes(self, name: str) -> int:
        """Of a file.

        Raises:
            OSError: it is not there.
        """
        return (self.folder / name).stat().st_size

    def text(self, name: str) -> str:
        """What a small file says, stripped; empty where it is not there.

        Raises:
            OSError: it cannot be read.
        """
        if name not in self.names:
            return ""
        with (self.folder / name).open("rb") as file:
            return file.read(4096).decode(errors="replace").strip()

    def json(self, name: str) -> Any:
        """What a JSON file holds; None where it is not there or damaged (which is told of the file itself).

        Raises:
            OSError: it cannot be read.
        """
        if name not in self.names or self.size_bytes(name) > _SMALL_BYTES:
            return None
        try:
            return json.loads((self.folder / name).read_bytes())
        except (ValueError, RecursionError):
            return None

    def saved(self, name: str) -> Any:
        """What a `torch.save` file holds, as husks; None where it is not there, or cannot be understood.

        Raises:
            OSError: it cannot be read.
        """
        if name not in self._contents:
            self._contents[name] = None
            if name in self.names:
                with (self.folder / name).open("rb") as file:
                    self._contents[name] = torchfile.read(file, whole=False)
        content = self._contents[name]
        return content.value if content is not None else None


def gaps(found: set[int], count: int | None = None) -> list[int]:
    """Numbers missing from 0 up to `count`, or up to the highest that was found."""
    upto = max(found, default=-1) + 1 if count is None else count
    return [n for n in range(upto) if n not in found]
