"""Decides whether a command can have warm processes, and whether they fit into memory. Only reads the program."""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm_robust.supervise.launch.srun_command import SrunCommand

HOOK = str(Path(__file__).resolve().parent / "hook")
"""The folder with the sitecustomize.py of the ranks."""
ROLE = "SROBUST_WARM"
"""The variable that tells the ranks' sitecustomize.py what to do: `record`, `wait` or `probe`."""
PROBED = 86
"""Exit code of a probed Python that loads our sitecustomize.py."""
MIB = 1 << 20
_LEAST_SHARE_FREE = 0.5
_FILES = {"output", "o", "error", "e", "input", "i"}
_TIMES = {"time", "t"}
_TWICE = {"prolog", "task-prolog", "epilog", "task-epilog", "bcast", "multi-prog", "pty", "open-mode"}
_OUTPUTS = ("SLURM_STDOUTMODE", "SLURM_STDERRMODE", "SLURM_STDINMODE")
_CONTAINERS = ("PYXIS_", "SLURM_CONTAINER", "SLURM_SPANK__SLURM_SPANK_OPTION_pyxis")
_BRINGS_ITS_WORKERS = re.compile(r"torchrun|torch\.distributed\.(?:run|launch)|accelerate|deepspeed")
_HARMLESS_FLAGS = re.compile(r"-(?:u|B|O{1,2}|b{1,2}|d|q|s|v)+$")
_WITH_VALUE = ("-X", "-W")


def refusal(command: SrunCommand, env: Mapping[str, str]) -> str:
    """Return why this command cannot have warm processes, as a part of a sentence; empty if it can."""
    values = set(command.values)
    if any(name.startswith("container") for name in values) or any(key.startswith(_CONTAINERS) for key in env):
        return "the command runs in a container, where the files of this package may be missing"
    if named := sorted(values & _FILES) or sorted(key for key in _OUTPUTS if env.get(key)):
        return f"srun is given files ({named[0]}): a second step would open and empty them while the first one writes"
    if values & _TIMES or env.get("SLURM_TIMELIMIT"):
        return "srun is given a time limit: that of a warm step counts from its own start"
    if named := sorted(values & _TWICE):
        return f"srun's --{named[0]} would take effect twice"
    if command.values.get("export", "ALL").upper() != "ALL" or env.get("SLURM_EXPORT_ENV", "ALL").upper() != "ALL":
        return "srun's --export keeps our variables from the ranks"
    return _program_refusal(command.command, env)


def _program_refusal(command: Sequence[str], env: Mapping[str, str]) -> str:
    word = Path(command[0]).name
    if any(_BRINGS_ITS_WORKERS.search(part) for part in command[:4]):
        return "the command starts workers of its own (torchrun and its like), and only they import the libraries"
    if not word.startswith("python"):
        return f"the command is no Python ({word[:40]}): what it does before Python would be done twice"
    program = shutil.which(command[0], path=env.get("PATH"))
    if program is None or _is_script(program):
        return f"{word[:40]} was not found, or is a script that chooses a Python"
    if env.get("PYTHONHOME") or env.get("PYTHONSAFEPATH"):
        return "PYTHONHOME or PYTHONSAFEPATH is set"
    return "" if python_words(command) else "Python's options leave out sitecustomize.py (-I, -E, -S), or are unusual"


def _is_script(program: str) -> bool:
    try:
        with Path(program).open("rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return True


def python_words(command: Sequence[str]) -> tuple[str, ...]:
    """Return Python and its options, without the program; empty if an option could disable sitecustomize.py."""
    at = 1
    while at < len(command):
        word = command[at]
        if word in ("-m", "-c") or not word.startswith("-"):
            return tuple(command[:at])
        if word in _WITH_VALUE:
            at += 2
        elif _HARMLESS_FLAGS.match(word) or word.startswith(_WITH_VALUE):
            at += 1
        else:
            return ()
    return ()  # a program on standard input


def reads_input(path: str) -> bool:
    """Return whether this stdin is not /dev/null: a second step would take lines away from the first step."""
    try:
        found = Path(path).stat()
    except OSError:
        return False  # it is closed
    return not (stat.S_ISCHR(found.st_mode) and found.st_rdev == Path(os.devnull).stat().st_rdev)


def environment(role: str, env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which the ranks' Python loads our sitecustomize.py."""
    others = env.get("PYTHONPATH", "")
    return {ROLE: role, "PYTHONPATH": f"{HOOK}{os.pathsep}{others}" if others else HOOK}


def memory_refusal(available: Mapping[str, int], processes: Mapping[str, int], each_mib: int) -> str:
    """Return why the warm processes do not fit into memory, and on which node; empty if they fit.

    They may take half of the free memory, by the node's memory and the job's limits.

    Args:
        available: Node → bytes that the job may still take there; -1 if not known.
        processes: Node → how many warm processes there would be.
        each_mib: The memory of one process.
    """
    for node, count in sorted(processes.items()):
        free = available.get(node, -1)
        if free < 0:
            return f"the free memory of {node} is not known"
        if count * each_mib * MIB > free * _LEAST_SHARE_FREE:
            of = f"of the {free // MIB} MiB that are free on {node}"
            return f"{count} processes of {each_mib} MiB need more than half {of}"
    return ""
