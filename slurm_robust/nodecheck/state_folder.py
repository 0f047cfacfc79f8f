"""The folder in which node checks keep their state: where it is, and who may have written what is in it.

Root reads and writes it, so nothing is believed that somebody else could have put there. `fast_path` loads this module
in every prolog, so it imports only what the interpreter has loaded anyway: no json, no re, no pathlib.
"""

from __future__ import annotations

import os
import stat

from slurm_robust import __version__

VERDICT = "fresh"
"""The cached verdict's file in `nodecheck.cache_dir`."""
FORMAT = f"srobust-fresh 1 {__version__}"
DEFAULT_CONFIG = "/etc/slurm_robust/robust.yaml"
DEFAULT_CACHE_DIR = "/run/slurm_robust"
_MAX_BYTES = 1 << 20


class UntrustedState(Exception):  # noqa: N818 (not a fault: the state is ignored, and the message says why)
    """Something in the state folder, or the way to it, is not to be believed."""


def identity(path: str) -> str:
    """Identifies a version of a file, so that any change shows: device, inode, size, times; `none` without a file."""
    try:
        info = os.stat(path)
    except FileNotFoundError:
        return "none"
    return f"{info.st_dev} {info.st_ino} {info.st_size} {info.st_mtime_ns} {info.st_ctime_ns}"


def cache_dir_of(config: str, node: str) -> str:
    """Where this configuration most likely has its state folder: a guess, since no YAML is parsed here.

    The files in it name the configuration that they belong to, so a wrong guess finds nothing that is wrong.

    Raises:
        UntrustedState: the text names several folders.
    """
    try:
        with open(config, "rb") as file:
            text = file.read(_MAX_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        text = ""
    lines = [line.split(" #")[0] for line in text.splitlines() if not line.lstrip().startswith("#")]
    after = [line.partition("cache_dir")[2].lstrip("\"' ") for line in lines if "cache_dir" in line]
    named = [rest[1:] for rest in after if rest.startswith(":")]
    if len(named) > 1:
        raise UntrustedState("the configuration names several folders")
    folder = named[0].replace(",", " ").replace("}", " ").strip().split(" ")[0].strip("\"'") if named else ""
    return (folder or DEFAULT_CACHE_DIR).replace("%n", node)


def open_own(folder: str) -> int:
    """A descriptor of the state folder, if nobody else can have put anything into it.

    Raises:
        OSError: it does not exist, or is a link or no folder.
        UntrustedState: others may write it.
    """
    inside = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    info = os.fstat(inside)
    # An ordinary user may read root's state; root trusts only root.
    if info.st_uid not in (0, os.geteuid()) or others_may_write(info):
        os.close(inside)
        raise UntrustedState(f"{folder} may be written by others")
    return inside


def others_may_write(info: os.stat_result) -> bool:
    """True where anybody but the owner and root's group may write it."""
    return bool(info.st_mode & 0o002 or (info.st_mode & 0o020 and info.st_gid not in (0, os.getegid())))


def read_own(folder: str, name: str) -> str:
    """A file in the state folder.

    Raises:
        OSError: it does not exist.
        UntrustedState: others may have written it, or it is too long.
    """
    inside = open_own(folder)
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=inside)
    finally:
        os.close(inside)
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or info.st_uid not in (0, os.geteuid()) or info.st_size > _MAX_BYTES:
            raise UntrustedState(f"{folder}/{name} is not ours")
        return os.read(fd, _MAX_BYTES).decode("utf-8", "replace")
    finally:
        os.close(fd)


def boot_id(root: str = "/") -> str:
    """The kernel's name of this boot, empty where it cannot be read."""
    try:
        with open(f"{root.rstrip('/')}/proc/sys/kernel/random/boot_id", "rb") as file:
            return file.read(100).decode("ascii", "replace").strip()
    except OSError:
        return ""
