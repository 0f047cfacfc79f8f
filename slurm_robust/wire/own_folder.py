"""Opens folders and files that are ours alone in places where others may write: a project's folder, `/tmp`.

A name there may be taken before us. So a folder is opened once, by a step that follows no link, and is believed only if
it is our own and nobody else may write it; what is in it is reached by its descriptor. Whoever exchanges the name
afterwards gets nothing of ours. This loads nothing but os and stat: every launch waits for it.
"""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OTHERS = 0o022
_MORE_NAMES = 3
_MOST_LINKS = 40
"""The kernel's own limit of links to follow."""
_ELOOP = 40  # of errno, which costs a module


class NotOursError(OSError):
    """Somebody else may have made it, or may write it."""


def open_folder(path: str, *, inside: int | None = None, make: int = 0) -> int:
    """Return a descriptor of a folder of our own.

    If others may write the folder (umask 002), that permission is removed first.

    Args:
        path: The folder.
        inside: Descriptor of the folder that `path` is relative to.
        make: The permissions with which a missing folder is made; 0 to make no folder.

    Raises:
        NotOursError: the path is a link, not a folder, or belongs to another user.
        OSError: the folder does not exist, or cannot be made.
    """
    if make:
        try:
            os.mkdir(path, make, dir_fd=inside)
        except FileExistsError:
            pass
    try:
        fd = os.open(path, _FOLDER, dir_fd=inside)
    except FileNotFoundError:
        raise
    except OSError as error:
        try:
            there = os.stat(path, dir_fd=inside, follow_symlinks=False)
        except OSError:
            raise error from None
        if stat.S_ISDIR(there.st_mode) and there.st_uid == os.geteuid():
            raise
        what = f"belongs to uid {there.st_uid}" if stat.S_ISDIR(there.st_mode) else "is not a folder"
        raise NotOursError(error.errno, f"it {what}", path) from None
    try:
        _check(fd, path)
    except OSError:
        os.close(fd)
        raise
    return fd


def _open_to(found: os.stat_result, where: int | str) -> int:
    """Return the permission bits by which others may write the file or folder.

    A group with the user's own number, as umask 002 is meant for, does not count as others, so that folders of older
    versions can still be read. With an access list, the group's bits are those of all users whom it names (acl(5)).
    """
    if found.st_gid in (0, os.geteuid()) and not (found.st_mode & 0o020 and _has_access_list(where)):
        return found.st_mode & 0o002
    return found.st_mode & _OTHERS


def _has_access_list(where: int | str) -> bool:
    try:
        return bool(os.getxattr(where, "system.posix_acl_access"))
    except OSError:
        return False


def _check(fd: int, path: str) -> os.stat_result:
    """Raise NotOursError if the folder belongs to another user, or stays open to others."""
    found = os.fstat(fd)
    if found.st_uid != os.geteuid():
        raise NotOursError(1, f"it belongs to uid {found.st_uid}", path)
    if _open_to(found, fd):
        try:
            if not found.st_mode & stat.S_ISVTX:  # with it (/tmp), it is open to others on purpose
                os.fchmod(fd, stat.S_IMODE(found.st_mode) & ~_OTHERS)
        except OSError:
            pass  # what counts is whether they may write it now
        if _open_to(os.fstat(fd), fd):
            raise NotOursError(1, "others may write it", path)
    return found


def open_file(name: str, flags: int, *, inside: int, mode: int = 0o644) -> int:
    """Return a descriptor of a plain file in a folder of our own.

    Raises:
        NotOursError: the file is a link, not plain, another user's, or has a second name; or others may have written a
            file to be read.
        OSError: the file does not exist, or the disk refuses.
    """
    try:
        fd = os.open(name, flags | _FILE, mode, dir_fd=inside)
    except OSError as error:
        if error.errno == _ELOOP:
            raise NotOursError(error.errno, "it is a link", name) from None
        raise
    try:
        found = os.fstat(fd)
        # Between the two, a writer may have put another in its place: then it has no name at all.
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            raise NotOursError(1, "it is not a plain file, or has several names", name)
        if _open_to(found, fd) and flags & os.O_ACCMODE == os.O_RDONLY:
            raise NotOursError(1, "others may write it", name)
        _check(fd, name)
    except OSError:
        os.close(fd)
        raise
    return fd


def fresh(path: str, flags: int) -> int:
    """Open a file that did not exist before, as the `opener` of `open`: a link or pipe in its place is not used.

    The rest of an earlier try is removed.
    """
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    return os.open(path, flags | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


def names(path: str) -> list[str]:
    """Return the paths at which the folder wanted at `path` may be, in the order in which they are looked at."""
    return [path, *(f"{path}.{n}" for n in range(1, _MORE_NAMES + 1))]


def first_own(path: str, *, make: int = 0) -> tuple[int, str]:
    """Return a descriptor of the folder wanted at `path`, and its place: there, beside that path, or below our home.

    A later run finds the same folder: the first of `names` that is our own, even if an earlier name is free again.

    Raises:
        OSError: no folder exists, and none can be made.
    """
    free = []
    for name in names(path):
        try:
            return open_folder(name), name
        except NotOursError:
            continue
        except FileNotFoundError:
            free.append(name)
    for name in free:
        if not make:
            raise FileNotFoundError(2, os.strerror(2), path)
        os.makedirs(os.path.dirname(os.path.abspath(name)), exist_ok=True)
        try:
            return open_folder(name, make=make), name
        except NotOursError:
            if os.lstat(name).st_uid == os.geteuid():
                break  # this file system does not keep modes
    name = at_home(path)
    if make:
        os.makedirs(os.path.dirname(name), 0o700, exist_ok=True)
    return open_folder(name, make=make), name


def replaceable_at(path: str) -> str:
    """Return the first folder or link on the way to `path` in whose place others may put another; "" for none.

    Raises:
        OSError: a folder on the way is missing, or cannot be looked at.
    """
    at, rest, links = "/", os.path.join(os.getcwd(), path).split("/")[::-1], 0
    while rest:
        part = rest.pop()
        if part in ("", "."):
            continue
        if part == "..":
            at = os.path.dirname(at)
            continue
        folder = os.stat(at)
        if folder.st_uid not in (0, os.geteuid()) or (_open_to(folder, at) and not folder.st_mode & stat.S_ISVTX):
            return at
        place = os.path.join(at, part)
        try:
            found = os.lstat(place)
        except FileNotFoundError:
            at = place  # the next look tells, unless it is the last
            continue
        if not stat.S_ISLNK(found.st_mode):
            at = place
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(_ELOOP, os.strerror(_ELOOP), path)
        # In a folder as /tmp its owner may exchange it; elsewhere its owner can do nothing alone.
        if _open_to(folder, at) and found.st_uid not in (0, os.geteuid()):
            return place
        target = os.readlink(place)
        at = "/" if target.startswith("/") else at
        rest += target.split("/")[::-1]
    return ""


def at_home(path: str) -> str:
    """Return the place below our home for a folder whose place is taken. Raises OSError if no home is known."""
    home = os.path.expanduser("~")
    if not os.path.isabs(home):
        raise FileNotFoundError(2, "no home folder is known", path)
    # Folders of several places have one name where clusters number their jobs alike.
    place = os.path.abspath(path).strip("/").replace("/", "%")
    return os.path.join(home, ".local", "state", "slurm_robust", place[-200:], os.path.basename(path))
