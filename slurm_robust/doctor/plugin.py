"""Checks of the SPANK plugin: is it loaded, as optional, and built for the Slurm that runs?"""

from __future__ import annotations

import contextlib
import os
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slurm_robust.doctor.advice import Advice, Severity
from slurm_robust.doctor.settings import value, version_of

PLUGIN = "spank_robust.so"
_INCLUDE = "include /etc/slurm/plugstack.conf.d/*.conf"
_MAX_INCLUDES = 64
_INSTALL = "make -C spank clean install prefix=/usr"
_FOLDER = (r"none|/.*", "expected an absolute path, or none")
ARGUMENTS = {
    "command": (r"/.*", "expected an absolute path"),
    "mode": (r"off|observe|on", "expected off, observe or on"),
    "python": _FOLDER,
    "exits": _FOLDER,
    "dumps": _FOLDER,
    "flight_recorder": (r"on|off", "expected on or off"),
}
"""The plugin's arguments, each with its pattern and the error text."""


@dataclass(frozen=True)
class PlugstackLine:
    """Our plugin's line in this file of plugstack.conf: `optional` or `required`, the plugin and its arguments."""

    file: str
    word: str
    path: str
    arguments: tuple[str, ...] = ()


def check(settings: Mapping[str, str], root: Path = Path("/")) -> list[Advice]:
    """Findings about this machine's plugstack.conf and the plugin in it.

    Nothing is checked where Slurm could not be asked. `root` is the folder that stands for `/`.
    """
    if not settings:
        return []
    conf = _conf(settings, root)
    folders = [part for part in value(settings, "PluginDir").split(":") if part]
    try:
        lines = read(conf, root)
    except FileNotFoundError:
        lines = []
    except OSError as error:
        return [Advice(Severity.UNKNOWN, conf, f"cannot be read: {error.strerror}")]
    ours = [line for line in lines if line.path.rsplit("/", 1)[-1] == PLUGIN]
    if not ours:
        return [_absent(conf, folders, root)]
    return [advice for line in ours for advice in _judged(line, settings, folders, root)]


def _conf(settings: Mapping[str, str], root: Path) -> str:
    """Return the path of plugstack.conf: if slurm.conf names none, Slurm takes the file beside slurm.conf."""
    named = value(settings, "PlugStackConfig")
    if named:
        return named
    beside = f"{value(settings, 'SLURM_CONF').rpartition('/')[0] or '/etc/slurm'}/plugstack.conf"
    fetched = "/run/slurm/conf/plugstack.conf"  # of a slurmd that has its configuration from the controller
    there = [path for path in (beside, fetched) if (root / path.lstrip("/")).exists()]
    return there[0] if there else beside


def read(conf: str, root: Path, depth: int = 0) -> list[PlugstackLine]:
    """Return the lines of plugstack.conf, with the lines of included files in their place.

    Raises:
        OSError: the file itself cannot be read; an included file that cannot be read is skipped.
    """
    out: list[PlugstackLine] = []
    for row in (root / conf.lstrip("/")).read_text("utf-8", "replace").splitlines():
        words = row.split("#", 1)[0].split()
        if len(words) == 2 and words[0].lower() == "include" and depth < 3:
            base = words[1] if words[1].startswith("/") else f"{conf.rsplit('/', 1)[0]}/{words[1]}"
            for path in sorted(root.glob(base.lstrip("/")))[:_MAX_INCLUDES]:
                with contextlib.suppress(OSError):
                    out += read("/" + str(path.relative_to(root)), root, depth + 1)
        elif len(words) >= 2 and words[0].lower() in ("optional", "required"):
            out.append(PlugstackLine(conf, words[0].lower(), words[1], tuple(words[2:])))
    return out


def _absent(conf: str, folders: list[str], root: Path) -> Advice:
    for folder in folders:
        if (root / folder.lstrip("/") / PLUGIN).exists():
            sentence = f"does not name {folder}/{PLUGIN}, which is installed: `sbatch --robust` is an unknown option"
            return Advice(Severity.WRONG, conf, sentence, _INCLUDE)
    sentence = "no SPANK plugin of ours: jobs need `srobust run` in their script, `sbatch --robust` is unknown"
    return Advice(Severity.ADVICE, conf, sentence, _INSTALL)


def _judged(line: PlugstackLine, settings: Mapping[str, str], folders: list[str], root: Path) -> list[Advice]:
    found = _arguments(line)
    if line.word == "required":
        sentence = f"{PLUGIN} is required: after an update of Slurm no job would start"
        found.append(Advice(Severity.WRONG, line.file, sentence, " ".join(("optional", line.path, *line.arguments))))
    places = [line.path] if line.path.startswith("/") else [f"{folder}/{line.path}" for folder in folders]
    path = next((place for place in places if (root / place.lstrip("/")).exists()), None)
    if path is None:
        sentence = f"names {line.path}, which is not on this machine: `sbatch --robust` is an unknown option here"
        return [*found, Advice(Severity.WRONG, line.file, sentence, _INSTALL)]
    try:
        library = (root / path.lstrip("/")).read_bytes()
    except OSError as error:
        return [*found, Advice(Severity.UNKNOWN, path, f"cannot be read: {error.strerror}")]
    found += [*_command(line, library, root), *_python(line, library, root)]
    built, running = built_for(library), version_of(settings)
    if built is None or running == (0, 0):
        return [*found, Advice(Severity.UNKNOWN, path, "the version of Slurm for which it was built is not known")]
    if built != running:
        names = f"{built[0]}.{built[1]:02d}", f"{running[0]}.{running[1]:02d}"
        sentence = f"was built for Slurm {names[0]}; this is {names[1]}, which does not load it"
        return [*found, Advice(Severity.WRONG, path, sentence, _INSTALL)]
    return found or [Advice(Severity.OK, path, f"built for this Slurm, {line.word}")]


def _arguments(line: PlugstackLine) -> list[Advice]:
    """Arguments that have no effect, judged as the plugin does."""
    found = []
    for argument in line.arguments:
        name, _, text = argument.partition("=")
        shape, why = ARGUMENTS.get(name, ("", ""))
        if not shape or "=" not in argument:
            why = f"there is no such argument; known are {', '.join(f'{known}=' for known in ARGUMENTS)}"
        elif re.fullmatch(shape, text):
            continue
        sentence = f"{argument} behind {PLUGIN} has no effect: {why}"
        found.append(Advice(Severity.WRONG, line.file, sentence, "see docs/spank.md, Install"))
    return found


def _command(line: PlugstackLine, library: bytes, root: Path) -> list[Advice]:
    """Tell whether srobust is at the path in the line, or else at the compiled-in path."""
    path = _chosen("command", line, library)
    if not path or os.access(root / path.lstrip("/"), os.X_OK):
        return []
    sentence = f"there is no srobust at {path} on this machine: jobs with --robust run unsupervised from here"
    return [Advice(Severity.WRONG, line.file, sentence, f"optional {line.path} command=PATH of srobust")]


def _python(line: PlugstackLine, library: bytes, root: Path) -> list[Advice]:
    """Check whether the folder that is put in front of the tasks' PYTHONPATH has our sitecustomize.py."""
    folder = _chosen("python", line, library)
    if folder in ("", "none") or (root / folder.lstrip("/") / "sitecustomize.py").is_file():
        return []
    sentence = (
        f"there is no sitecustomize.py in {folder} on this machine, where {PLUGIN} looks for it: "
        "the stacks of ranks' child processes cannot be read where kernel.yama.ptrace_scope is 1"
    )
    return [Advice(Severity.WRONG, line.file, sentence, _INSTALL)]


def _chosen(name: str, line: PlugstackLine, library: bytes) -> str:
    """Return this argument of the line if it has an effect, else the compiled-in value; empty if there is neither."""
    shape, start = ARGUMENTS[name][0], f"{name}="
    given = [text.removeprefix(start) for text in line.arguments if text.startswith(start)]
    given = [text for text in given if re.fullmatch(shape, text)]
    return given[-1] if given else built_in(library).get(name, "")


def built_in(library: bytes) -> dict[str, str]:
    """Paths that a plugin was built with, by the argument that changes them; nothing of a plugin that marks none."""
    found = re.findall(rb"srobust-built-in (\w+)=(/[^\0]*)\0", library)
    return {name.decode(): path.decode("utf-8", "replace") for name, path in found}


def built_for(library: bytes) -> tuple[int, int] | None:
    """Return the Slurm whose headers a plugin was built with, `(22, 5)`: its symbol `plugin_version`.

    None if it has none. It is read without loading it, which would need symbols of Slurm.
    """
    try:
        number = _number_at(library, b"plugin_version")
    except (struct.error, IndexError, ValueError, OverflowError):
        return None
    return None if number is None else (number >> 16 & 0xFF, number >> 8 & 0xFF)


def _number_at(library: bytes, symbol: bytes) -> int | None:
    """Return the 32-bit number that a 64-bit ELF library exports under this name."""
    if library[:5] != b"\x7fELF\x02" or library[5] not in (1, 2):
        return None
    order = "<" if library[5] == 1 else ">"
    program_at, section_at = struct.unpack_from(f"{order}QQ", library, 32)
    program_bytes, program_count, section_bytes, section_count = struct.unpack_from(f"{order}4H", library, 54)
    for n in range(section_count):
        kind, _, _, at, size, link = struct.unpack_from(f"{order}IQQQQI", library, section_at + n * section_bytes + 4)
        if kind != 11:  # the dynamic symbols
            continue
        names_at = struct.unpack_from(f"{order}Q", library, section_at + link * section_bytes + 24)[0]
        for entry in range(at, at + min(size, len(library)), 24):
            name, _, _, _, address = struct.unpack_from(f"{order}IBBHQ", library, entry)
            end = library.index(b"\0", names_at + name)
            if library[names_at + name : end] != symbol:
                continue
            for p in range(program_count):
                header = program_at + p * program_bytes
                loaded, _, offset, start, _, length = struct.unpack_from(f"{order}IIQQQQ", library, header)
                if loaded == 1 and start <= address < start + length:
                    return int(struct.unpack_from(f"{order}I", library, offset + address - start)[0])
    return None
