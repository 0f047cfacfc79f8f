"""Checks of this machine: installed scripts, our configuration, and whether py-spy may attach to ranks."""

from __future__ import annotations

import os
import shutil
import stat
import struct
from collections.abc import Mapping
from pathlib import Path

from slurm_robust.doctor.advice import Advice, Severity
from slurm_robust.doctor.settings import value

ENV_FILE = "/etc/slurm_robust/env"
PYTHON = "/opt/slurm_robust/bin/python"
"""The Python of our scripts, where that file names no other."""
_CAP_SYS_PTRACE = 19
_YAMA = "/proc/sys/kernel/yama/ptrace_scope"


def check(settings: Mapping[str, str], config: Path | None, root: Path = Path("/")) -> list[Advice]:
    """Return all findings about this machine; `settings` is empty if Slurm could not be asked, `root` stands for /."""
    found = []
    for key in ("Prolog", "Epilog", "HealthCheckProgram"):
        path = value(settings, key)
        if path.startswith("/") and "*" not in path:
            found.append(owned(root, path, run=True))
    chosen = settings_of(root)
    used = {chosen.get("SROBUST_PYTHON", PYTHON): True, chosen.get("SROBUST_CODE", ""): True}
    used |= {ENV_FILE: False, str(config) if config else "": False}
    there = {path: run for path, run in used.items() if path and (root / path.lstrip("/")).exists()}
    found += [owned(root, path, run=run) for path, run in there.items()]
    return [*found, ptrace(_scope(root), py_spy_may())]


def settings_of(root: Path) -> dict[str, str]:
    """Return the scripts' settings, `KEY=value` lines of their file; empty if there is no such file."""
    try:
        text = (root / ENV_FILE.lstrip("/")).read_bytes().decode("utf-8", "replace")
    except OSError:
        return {}
    pairs = (line.partition("=") for line in text.splitlines())
    return {key: value.strip('"') for key, _, value in pairs if key.startswith("SROBUST_")}


def owned(root: Path, path: str, *, run: bool) -> Advice:
    """Check whether only root can change a file that root runs or reads, and every folder of its path."""
    file = root / path.lstrip("/")
    try:
        info = file.stat()
        # The folders of a link, too: a user who may replace the link chooses its target.
        chain = [file, *file.resolve().parents, *file.absolute().parents] if str(root) == "/" else [file]
        for part in chain:
            if problem := _loose(part.stat(), folder=part != file):
                name = path if part == file else str(part)
                sentence = f"{name} {problem}, and root {'runs' if run else 'trusts'} {path}"
                return Advice(Severity.WRONG, path, sentence, f"chown root:root {name}; chmod go-w {name}")
    except OSError as error:
        return Advice(Severity.UNKNOWN, path, f"cannot be read here: {error.strerror}", "srobust doctor  # on a node")
    if run and not info.st_mode & 0o111:
        return Advice(Severity.WRONG, path, "is not executable: Slurm treats that as a failure", f"chmod 755 {path}")
    return Advice(Severity.OK, path, "only root can change it")


def _loose(info: os.stat_result, *, folder: bool) -> str:
    if info.st_uid != 0:
        return f"belongs to user {info.st_uid}"
    if folder and info.st_mode & stat.S_ISVTX:
        return ""  # others cannot replace root's file there
    if info.st_mode & 0o002 or (info.st_mode & 0o020 and info.st_gid != 0):
        return "may be written by others"
    return ""


def _scope(root: Path) -> int | None:
    try:
        return int((root / _YAMA.lstrip("/")).read_bytes()[:8])
    except FileNotFoundError:
        return 0  # a kernel without Yama
    except (OSError, ValueError):
        return None


def py_spy_may(path: str | None = None) -> bool:
    """Return whether the program py-spy has CAP_SYS_PTRACE as a file capability, permitted and effective."""
    path = path or shutil.which("py-spy")
    if not path:
        return False
    try:
        raw = os.getxattr(path, "security.capability")
    except OSError:
        return False
    if len(raw) < 12:
        return False
    magic, permitted = struct.unpack_from("<II", raw)
    return bool(magic & 1) and bool(permitted >> _CAP_SYS_PTRACE & 1)


def ptrace(scope: int | None, granted: bool) -> Advice:
    """Return whether an agent's py-spy can read the stacks of ranks.

    The scope is None if it cannot be read. With `granted`, py-spy has the capability itself.
    """
    about = "kernel.yama.ptrace_scope"
    grant = "setcap cap_sys_ptrace+ep $(readlink -f $(command -v py-spy))"
    open_ = "sysctl -w kernel.yama.ptrace_scope=0"
    if scope is None:
        return Advice(Severity.UNKNOWN, about, "cannot be read")
    if scope == 0:
        return Advice(Severity.OK, about, "0: py-spy reads the stacks of every process of the same user")
    if scope >= 3:
        sentence = f"{scope}: nobody may read stacks, and only a reboot changes that; verdicts rest on exits alone"
        return Advice(Severity.WRONG, about, sentence, "kernel.yama.ptrace_scope=1 in /etc/sysctl.d, then reboot")
    if granted:
        return Advice(Severity.OK, about, f"{scope}, and py-spy has cap_sys_ptrace")
    if scope == 2:
        sentence = "2: py-spy needs cap_sys_ptrace to read stacks"
        return Advice(Severity.WRONG, about, sentence, f"{grant}   (or: {open_})")
    sentence = (
        "1: only ranks that import slurm_robust.progress, or run under its SPANK plugin, let py-spy read their stacks"
    )
    return Advice(Severity.ADVICE, about, sentence, f"{open_}   (or: {grant})")
