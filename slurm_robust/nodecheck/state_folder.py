"""Opens the folder in which node checks keep their state, and tells who may have written its files.

Root reads and writes the folder, so a file is not believed if another user could have put it there. `fast_path` loads
this module in every prolog, so it imports only what the interpreter has loaded anyway: no json, no re, no pathlib.
"""

from __future__ import annotations

import os
import stat

from slurm_robust import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

VERDICT = "fresh"
"""The cached verdict's file in `nodecheck.cache_dir`."""
FORMAT = f"srobust-fresh 1 {__version__}"
DEFAULT_CONFIG = "/etc/slurm_robust/robust.yaml"
DEFAULT_CACHE_DIR = "/run/slurm_robust"
_MAX_BYTES = 1 << 20
_MAX_LINKS = 40  # the kernel's own limit
_ELOOP = 40  # of errno, which costs a module


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
    """Return the likely state folder of this configuration: a guess, since no YAML is parsed here.

    The files in the folder name their configuration, so a wrong guess does no harm.

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
    """Return a descriptor of the state folder, if no other user can have put files into it.

    Raises:
        OSError: the folder does not exist, or is a link or no folder.
        UntrustedState: others may write the folder.
    """
    inside = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    info = os.fstat(inside)
    # An ordinary user may read root's state; root trusts only root.
    if info.st_uid not in (0, os.geteuid()) or others_may_write(info):
        os.close(inside)
        raise UntrustedState(f"{folder} may be written by others")
    return inside


def others_may_write(info: os.stat_result) -> bool:
    """Return whether users other than the owner and root's group may write it."""
    return bool(info.st_mode & 0o002 or (info.st_mode & 0o020 and info.st_gid not in (0, os.getegid())))


def foreign_place(path: str, is_owner: Callable[[int], bool]) -> str:
    """Return the file or the first folder on its path that others may write, or another user owns; empty if none.

    The folders of links count like the folders of their targets: a user who may replace a link chooses its target. In a
    sticky folder (/tmp) users cannot replace another user's file.

    Args:
        path: The file.
        is_owner: Tells by its number whether a user may own the file and the folders.

    Raises:
        OSError: the file does not exist.
    """
    for place in _way(path):
        info = os.stat(place)
        sticky = stat.S_ISDIR(info.st_mode) and info.st_mode & stat.S_ISVTX
        writable = others_may_write(info) or (info.st_mode & 0o020 and _has_access_list(place))
        if not is_owner(info.st_uid) or (writable and not sticky):
            return place
    return ""


def _has_access_list(path: str) -> bool:
    """Return whether the group's bits are those of all users whom an access list names (acl(5))."""
    try:
        return bool(os.getxattr(path, "system.posix_acl_access"))
    except OSError:
        return False


def is_ours(uid: int) -> bool:
    """True for root, and for who runs this."""
    return uid in (0, os.geteuid())


def _way(path: str) -> list[str]:
    """Return every folder that the kernel passes on the way to a file, in order, and the file."""
    at, passed, links = "/", ["/"], 0
    left = os.path.join(os.getcwd(), path).split("/")[::-1]
    while left:
        name = left.pop()
        if name in ("", "."):
            continue
        if name == "..":
            at = os.path.dirname(at)
            continue
        place = os.path.join(at, name)
        if not os.path.islink(place):
            at = place
            passed.append(place)
            continue
        links += 1
        if links > _MAX_LINKS:
            raise OSError(_ELOOP, os.strerror(_ELOOP), path)
        target = os.readlink(place)
        at = "/" if target.startswith("/") else at
        left += target.split("/")[::-1]
    return passed


def read_own(folder: str, name: str) -> str:
    """Return a file in the state folder.

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
    """Return the kernel's name of this boot, empty if it cannot be read."""
    try:
        with open(f"{root.rstrip('/')}/proc/sys/kernel/random/boot_id", "rb") as file:
            return file.read(100).decode("ascii", "replace").strip()
    except OSError:
        return ""
