"""A pyslurm of the test's choice beside commands that write down what they are asked; no cluster is needed."""

from __future__ import annotations

import importlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from slurm_robust.config.site import SlurmConfig
from slurm_robust.slurm.pyslurm_backend import PyslurmClient

SHAPES = Path(__file__).with_name("pyslurm_shapes")
NEW, OLD = "objects_25_11.py", "functions_22_5.py"
COMMAND = """#!/bin/sh
case "$*" in
--version) echo slurm {version}; exit ;;
"show config") echo "ClusterName = by_command" ;;
esac
echo "$(basename "$0") $*" >> {calls}
"""


class World:
    """A pyslurm of the test's choice beside commands that write down what they are asked."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._monkeypatch = monkeypatch
        self._clients: list[PyslurmClient] = []
        monkeypatch.setenv("STUB_CALLS", str(folder / "calls"))
        monkeypatch.syspath_prepend(str(folder))

    def config(self, module: str, slurm: str) -> SlurmConfig:
        """With `module` (a file of shapes, or source) as pyslurm, beside the commands of this Slurm."""
        if module.endswith(".py"):
            shutil.copy(SHAPES / module, self.folder / "pyslurm.py")
        else:
            (self.folder / "pyslurm.py").write_text(module)
        importlib.invalidate_caches()
        for name in ("scontrol", "sinfo", "squeue", "scancel"):
            text = COMMAND.format(version=slurm, calls=self.folder / "commands")
            (self.folder / name).write_text(text)
            (self.folder / name).chmod(0o755)
        return SlurmConfig(backend="pyslurm", bin_dir=str(self.folder), timeout_s=10.0)

    def client(self, module: str = NEW, slurm: str = "25.11.8") -> PyslurmClient:
        """A client of it."""
        self._clients.append(PyslurmClient(self.config(module, slurm)))
        return self._clients[-1]

    def trouble(self, *words: str) -> None:
        """What the stand-in does wrong from its next start on."""
        self._monkeypatch.setenv("STUB_TROUBLE", " ".join(words))

    def asked(self) -> list[Any]:
        """What changes pyslurm was asked for; reads are left out."""
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [call for call in map(json.loads, lines) if not str(call[0]).startswith(("load", "get"))]

    def commands(self) -> list[str]:
        """What the commands were asked."""
        path = self.folder / "commands"
        return path.read_text().splitlines() if path.exists() else []

    def close(self) -> None:
        """End what was started."""
        for client in self._clients:
            client.close()
