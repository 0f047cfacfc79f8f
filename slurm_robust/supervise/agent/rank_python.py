"""Finds the Python that runs a rank, so that a test of the node can load the same PyTorch."""

from __future__ import annotations

import os
from typing import Iterator

from slurm_robust.supervise.agent import procfs


def python_of(pid: int) -> str:
    """Return the path by which another process of this node starts the same Python; empty if there is none.

    A rank may run another program, or its Python may be inside a container. A virtual environment is found only by the
    path by which its Python was started: `/proc/PID/exe` leads to the Python from which the environment was made.
    """
    link = f"/proc/{pid}/exe"
    try:
        program = os.readlink(link)
        wanted = os.stat(link)
    except OSError:
        return ""
    if not os.path.basename(program).startswith("python"):
        return ""
    for path in (*_started_as(pid), program):
        try:
            if os.path.samestat(os.stat(path), wanted):
                return path
        except OSError:
            continue
    return ""


def _started_as(pid: int) -> Iterator[str]:
    """Yield paths that the first word of the command line may mean, then Pythons of environments that it names."""
    environment = procfs.environ(pid)
    word = procfs.command_word(pid)
    if os.path.isabs(word):
        yield word
    elif "/" in word:
        for folder in (f"/proc/{pid}/cwd", environment.get("PWD", "")):
            try:
                yield os.path.normpath(os.path.join(os.path.realpath(folder), word))
            except OSError:
                continue
    elif word.startswith("python"):
        for folder in environment.get("PATH", "").split(os.pathsep):
            if os.path.isabs(folder):
                yield os.path.join(folder, word)
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if os.path.isabs(environment.get(name, "")):
            yield os.path.join(environment[name], "bin", "python")
