"""Decides the environment of each launch: a name, a checkpoint, fresh rendezvous values. Does not start anything."""

from __future__ import annotations

import os
import re
import shutil
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from slurm_robust.supervise.launch.srun_command import SrunCommand

SKIP_VARIABLE = "SROBUST_SKIP_BATCHES"
"""The variable that `checkpoint.health.rollback_log` reads; repeated so that a launch need not load that module."""
_PORTS = range(20000, 32000)
"""Ports below Linux's ephemeral ports, and above the ports of usual services."""
_FLIGHT_RECORDER_EVENTS = "2000"
_NEW_NAMES_SINCE = (2, 9)
"""From this torch version on, old names cost a warning on every rank, and new names are known for sure."""
_TORCH = ("lib*/python3*/site-packages", "lib/python3*/dist-packages", "local/lib/python3*/dist-packages")
"""Places of torch below the prefix of a Python."""
_SHEBANG_BYTES = 512
_SCRIPT_BYTES = 1 << 16
_SHELLS = ("bash", "sh", "dash", "zsh", "ksh")
_AROUND = (
    "chrt", "env", "ionice", "ncu", "nice", "nohup", "nsys", "numactl", "perf", "setsid", "stdbuf", "strace", "taskset",
    "time", "timeout", "unshare",
)  # fmt: skip
"""Programs that start the command behind their own options."""
_LAUNCHERS = r"(?:^|[\s;&|('\"])((?:[\w.+/-]*/)?(?:python[\d.]*|torchrun|accelerate|deepspeed))(?=\s|$)"
_CHANGES_PYTHON = (
    r"\bactivate\b|\bmodule\s|\bconda\b|\bmamba\b|\bPATH=|\b(?:apptainer|singularity|docker|podman|enroot)\b"
)
"""Matches commands after which a name in a shell command may mean another program than it means to us."""


class ResumePoint(NamedTuple):
    """The checkpoint that an attempt is given.

    Attributes:
        path: The checkpoint, None for a start from the beginning.
        step: Its step, -1 for none.
        notes: Why newer checkpoints were skipped, or why no checkpoint could be looked up.
        searched: False if no checkpoint folder was named.
        skipped: Batches that the data loader is to leave out, `3-5,9-9`.
    """

    path: Path | None = None
    step: int = -1
    notes: tuple[str, ...] = ()
    searched: bool = False
    skipped: str = ""


def attempt_name(job: str, restart: int, launcher: int, launch: int) -> str:
    """Return the name of the nth launch of one run of a job.

    The launcher's pid tells the runs of one script apart; a supervisor that is started again has the same parent.
    """
    return f"{job.replace('+', '_')}.{restart}.{launcher}.{launch}"


def environment(
    base: Mapping[str, str],
    attempt: str,
    lineage: str,
    start: ResumePoint,
    dumps: Path,
    *,
    command: SrunCommand | None = None,
) -> dict[str, str]:
    """Return the variables for the ranks; a variable that the user set is never overridden.

    Agents tell ranks of different launches apart by `attempt`. `dumps` is the folder for flight-recorder dumps. The
    launched command shows what PyTorch the ranks load.
    """
    # Variables with Slurm's own prefix reach the ranks with any `--export`.
    env = {"SROBUST_ATTEMPT": attempt, "SLURM_SROBUST_ATTEMPT": attempt, "SROBUST_LINEAGE": lineage}
    if start.searched:
        env["SROBUST_RESUME_PATH"] = str(start.path) if start.path is not None else ""
        env["SROBUST_RESUME_STEP"] = str(start.step)
        env[SKIP_VARIABLE] = start.skipped
    # Nobody else can make a file of this name first: PyTorch follows links, and fails if it cannot make its pipe. The
    # pipes have no folder of our own: it would have to be there on each node, and in each rank's container.
    stem = str(dumps / f"{attempt}-{os.urandom(8).hex()}-rank-")
    wanted = {
        "TORCH_FR_BUFFER_SIZE": _FLIGHT_RECORDER_EVENTS,
        "TORCH_FR_DUMP_TEMP_FILE": stem,
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        # Python's stacks come from py-spy; here they need the GIL, which a hung rank may hold for ever.
        "TORCH_INCLUDE_STACK_TRACE": "0",
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"/tmp/srobust-{attempt}-{os.urandom(8).hex()}-",  # noqa: S108
    }
    # PyTorch renamed these. New versions warn on every rank if an old name is set; old versions only know old names.
    if not only_new_names(command, base):
        wanted["TORCH_NCCL_TRACE_BUFFER_SIZE"] = _FLIGHT_RECORDER_EVENTS
        wanted["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"] = stem
    env.update({k: v for k, v in wanted.items() if k not in base})
    return env


def only_new_names(command: SrunCommand | None, env: Mapping[str, str]) -> bool:
    """Return whether every PyTorch that this command can load is new; False if it is not known.

    The command's own Python decides, which is seldom ours, so this reads the files of that Python.
    """
    if command is None or any(option.startswith("--container") for option in command.options):
        return False
    programs = [shutil.which(word, path=env.get("PATH")) for word in _programs_of(command.command)]
    pythons = [_python_of(Path(program)) if program is not None else None for program in programs]
    folders = [Path(folder) for folder in env.get("PYTHONPATH", "").split(os.pathsep) if folder]
    prefixes = []
    for python in pythons:
        if python is None:
            return False
        prefixes += [python.parent.parent, python.resolve().parent.parent]
    prefixes.append(Path(env.get("PYTHONUSERBASE") or f"{env.get('HOME', '/nonexistent')}/.local"))
    folders += [found for prefix in prefixes for pattern in _TORCH for found in prefix.glob(pattern)]
    versions = [version for folder in folders if (version := _torch_in(folder)) is not None]
    return bool(pythons and versions) and min(versions) >= _NEW_NAMES_SINCE


def _programs_of(command: Sequence[str]) -> list[str]:
    """Return the programs that may load PyTorch: the first word, or what it starts; empty if not known."""
    first, rest = (Path(command[0]), " ".join(command[1:])) if command else (Path(), "")
    if first.name in _AROUND or (first.name in _SHELLS and "-c" in command):
        text = rest
    elif first.name in _SHELLS:
        text = os.fsdecode(_head(Path(next((word for word in command[1:] if word[:1] != "-"), "")), _SCRIPT_BYTES))
    elif (script := _shell_script(first)) is not None:
        text = f"{script}\n{rest}" if '"$@"' in script else script
    else:
        return list(command[:1])
    return [] if re.search(_CHANGES_PYTHON, text) else re.findall(_LAUNCHERS, text)


def _shell_script(program: Path) -> str | None:
    """Return the text of a shell script; None if the program is something else."""
    line, _, text = os.fsdecode(_head(program, _SCRIPT_BYTES)).partition("\n")
    words = [Path(word).name for word in line.removeprefix("#!").split()]
    return text if line.startswith("#!") and set(words) & set(_SHELLS) else None


def _python_of(program: Path) -> Path | None:
    """Return the program if it is a Python, or the Python that its first line names (torchrun); else None."""
    if program.name.startswith("python"):
        # A script of this name (pyenv's) chooses a Python by rules of its own.
        return program if _head(program)[:2] != b"#!" else None
    named = _head(program).partition(b"\n")[0].split()
    named = [named[0][2:], *named[1:]] if named and named[0].startswith(b"#!") else []
    python = Path(os.fsdecode(named[0])) if named and named[0] else None
    return python if python is not None and python.name.startswith("python") else None


def _head(path: Path, size_bytes: int = _SHEBANG_BYTES) -> bytes:
    """Return the beginning of a plain file; other files are not opened, since a pipe may wait for ever."""
    try:
        if not path.is_file():
            return b""
        with path.open("rb") as f:
            return f.read(size_bytes)
    except OSError:
        return b""


def _torch_in(folder: Path) -> tuple[int, int] | None:
    try:
        text = (folder / "torch" / "version.py").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(r"^__version__ = ['\"](\d+)\.(\d+)", text, re.MULTILINE)
    return (int(found[1]), int(found[2])) if found is not None else None


def fresh_rendezvous(base: Mapping[str, str], attempt: str, nodes: Sequence[str]) -> dict[str, str]:
    """Return MASTER_ADDR and MASTER_PORT for a relaunch, if the script set them.

    An address that is not Slurm's name of a node (an IP address, an alias) is the script's own choice and stays.
    """
    out: dict[str, str] = {}
    address = base.get("MASTER_ADDR", "")
    if address and nodes and re.split(r"[.]", address)[0] in nodes:
        out["MASTER_ADDR"] = nodes[0]
    if base.get("MASTER_PORT"):
        out["MASTER_PORT"] = str(_PORTS[zlib.crc32(attempt.encode()) % len(_PORTS)])
    return out
