"""Selects which entries of a folder belong to a version of the code, stay shared with the folder, or are left out."""

from __future__ import annotations

import errno
import fnmatch
import itertools
import os
import stat
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

_REPOSITORIES = (".git", ".hg", ".svn")
_PRIVATE = "it may hold a secret"
_SECRETS = (
    *(".env", ".env.*", ".envrc", ".netrc", ".pypirc", ".git-credentials", "credentials", "credentials.json"),
    *(".ssh", ".aws", ".gnupg", ".kube", ".docker"),
    *("*.pem", "*.key", "*.p12", "*.pfx", "*.kdbx", "*.keystore", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*"),
)
_NO_SECRETS = (".env.example", ".env.sample", ".env.template", ".env.dist")
_BY_PRODUCTS = ("__pycache__", "*.pyc", "*.pyo", "slurm-robust-*", "slurm-[0-9]*.out")
_SOURCE_SUFFIXES = frozenset(
    {".py", ".pyi", ".pyx", ".pxd", ".sh", ".bash", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".rs", ".jinja"}
)
"""A new file, not in git yet, belongs to the version if it has one of these suffixes; others may be data or outputs."""
_NEW_ENTRIES = 5000
"""A new folder with more entries is not searched for source."""
_GIT_S = 30.0
_KINDS = (
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISBLK, "a device file"),
    (stat.S_ISCHR, "a device file"),
)


class SelectionError(Exception):
    """A snapshot of the folder cannot be taken; the message says why, and what to do."""


@dataclass
class Selection:
    """The entries of a folder, by what a snapshot does with them. Paths are relative to the folder.

    Attributes:
        files: Regular files that belong to the version → their size in bytes.
        links: Symbolic links within the folder → their target, relative to the folder.
        shared: Entries that are not part of the version, but linked from a snapshot → the target of the link.
        left_out: Entries that a snapshot does not have → why.
        commit: The commit that git has checked out; empty without git.
        without_git: Why git could not be asked, although this is a repository: all files were taken.
    """

    files: dict[str, int] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    shared: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    commit: str = ""
    without_git: str = ""


def select(folder: Path, *, shared: Iterable[str] = (), max_files: int = 20_000) -> Selection:
    """Sort the entries of a folder: by git if it is in a repository, else take all of them.

    `shared` are paths in the folder that stay shared in any case (its checkpoints, say).

    Raises:
        SelectionError: the folder cannot be read, or it has too many files.
    """
    root = folder.resolve()
    if not root.is_dir():
        raise SelectionError(f"{folder} is not a folder")
    if not _can_be_listed(str(root)):
        raise SelectionError(f"{str(root)!a}: its name is not one line of text")
    picker = _Picker(root, {str(PurePosixPath(path)) for path in shared}, max_files)
    try:
        picker.take_folder("")
        picker.finish()
    except OSError as error:
        raise SelectionError(f"{error.filename or folder} cannot be read: {error.strerror}") from None
    except RecursionError:
        raise SelectionError(f"{folder} has folders that are nested too deeply") from None
    return picker.found


def is_source(path: str) -> bool:
    """Return whether a file is source by its name, and so neither data nor output."""
    return PurePosixPath(path).suffix in _SOURCE_SUFFIXES


def why_left_out(name: str) -> str:
    """Return why an entry of this name is left out of every snapshot; empty if it may be in one."""
    if name in _REPOSITORIES:
        return "the repository itself"
    if name not in _NO_SECRETS and any(fnmatch.fnmatchcase(name, pattern) for pattern in _SECRETS):
        return _PRIVATE
    return "a by-product" if any(fnmatch.fnmatchcase(name, pattern) for pattern in _BY_PRODUCTS) else ""


class _Picker:
    def __init__(self, root: Path, shared: set[str], max_files: int) -> None:
        self.root = root
        self.found = Selection()
        self._shared = shared
        self._max_files = max_files
        self._links: list[str] = []
        self._link_folders: dict[str, bool] = {}

    # -- with git -----------------------------------------------------------------------------------------------------

    def take_folder(self, path: str) -> None:
        """Take a whole folder, or a submodule in it: by git, else all of it."""
        place = self.root / path
        if path and not (place / ".git").exists():
            self._take_all(path)  # a submodule that was not checked out, or a folder in the place of a tracked file
        elif not self._take_repository(place, f"{path}/" if path else ""):
            self._take_all(path)

    def _take_repository(self, folder: Path, prefix: str) -> bool:
        """Take the files of this folder that git knows; return False without a repository, or if git cannot tell."""
        if not _in_repository(folder):
            return False
        try:
            tracked = _git(folder, "ls-files", "-z", "--cached")
            new = _git(folder, "ls-files", "-z", "--others", "--exclude-standard", "--directory")
            ignored = _git(folder, "ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory")
            if not prefix:
                self.found.commit = "".join(_git(folder, "rev-parse", "--short=12", "HEAD", check=False)).strip()
        except (OSError, subprocess.SubprocessError) as error:
            self.found.without_git = _git_words(error)
            return False
        for path in tracked:
            if not self._beyond_link(prefix + path):
                self._take(prefix + path, self.take_folder, self._add)
        for path in new:
            self._take(prefix + path.rstrip("/"), self._take_new_folder, self._take_new_file)
        for path in ignored:
            self._take(prefix + path.rstrip("/"), self._share, self._share)
        return True

    def _beyond_link(self, path: str) -> bool:
        """Return whether a link has replaced a folder on this path: git still lists the files of that folder."""
        return any(self._is_link(str(parent)) for parent in _parents(path))

    def _is_link(self, path: str) -> bool:
        if path not in self._link_folders:
            self._link_folders[path] = (self.root / path).is_symlink()
        return self._link_folders[path]

    def _take_new_file(self, path: str) -> None:
        """Take a file that is not in git yet as part of the version if it is source."""
        (self._add if is_source(path) else self._share)(path)

    def _take_new_folder(self, path: str) -> None:
        """Take a folder that is not in git yet; it stays shared as a whole if it contains no source."""
        inside = list(itertools.islice(_walk(self.root, path), _NEW_ENTRIES + 1))
        source = any(is_source(found) for found in inside)
        if not source or len(inside) > _NEW_ENTRIES:
            self._share(path)
            return
        for found in inside:
            self._take(found, self._share, self._take_new_file)

    # -- without git --------------------------------------------------------------------------------------------------

    def _take_all(self, path: str) -> None:
        """Take all files below this path."""
        if path and not os.access(self.root / path, os.R_OK | os.X_OK):
            self._share(path)  # the program cannot read it either, but it may not need to
            return
        for name in sorted(os.listdir(self.root / path)):  # noqa: PTH208 (paths are built as text)
            self._take(f"{path}/{name}" if path else name, self._take_all, self._add)

    # -- one entry ----------------------------------------------------------------------------------------------------

    def _take(self, path: str, take_folder: Callable[[str], None], take_file: Callable[[str], None]) -> None:
        """Decide about one entry; `take_folder` and `take_file` decide about entries that may be taken."""
        if reason := next((why for name in path.split("/") if (why := why_left_out(name))), ""):
            # The program may need its secret: a link leads to it, and it is not copied.
            (self._share_secret if reason == _PRIVATE else self._leave_out)(_first_left_out(path), reason)
            return
        if any(path == shared or path.startswith(f"{shared}/") for shared in self._shared):
            return  # `finish` links to it
        if not _can_be_listed(path):
            self.found.left_out[ascii(path)] = "its name is not one line of text"
            return
        try:
            mode = (self.root / path).lstat().st_mode
        except FileNotFoundError:
            return  # deleted in the working tree
        if stat.S_ISLNK(mode):
            self._links.append(path)
        elif stat.S_ISDIR(mode):
            take_folder(path)
        elif stat.S_ISREG(mode):
            take_file(path)
        else:
            self.found.left_out[path] = next((kind for is_kind, kind in _KINDS if is_kind(mode)), "no regular file")

    def _leave_out(self, path: str, reason: str) -> None:
        self.found.left_out[path] = reason

    def _share_secret(self, path: str, _: str) -> None:
        if (self.root / path).is_file() or (self.root / path).is_dir():
            self._share(path)

    def _add(self, path: str) -> None:
        if not os.access(self.root / path, os.R_OK):
            self._share(path)
            return
        self.found.files[path] = (self.root / path).lstat().st_size
        if len(self.found.files) > self._max_files:
            why = self.found.without_git
            git = f" (git could not be asked which files it ignores: {why})" if why else ""
            raise SelectionError(
                f"{self.root} has more than {self._max_files} files that belong to its code "
                "(supervise.code_max_files): name the folder with the code alone, or list in .gitignore what is "
                f"not code{git}"
            )

    def _share(self, path: str) -> None:
        self.found.shared[path] = str(self.root / path)

    # -- symbolic links -----------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Decide about links, once all other entries are known."""
        for path in sorted(self._shared):
            if not any(str(parent) in self.found.shared for parent in _parents(path)):
                self._share(path)
        self._share_crowded_folders()
        for path in sorted(self._links):
            self._take_link(path)
        folders = {str(parent) for file in (*self.found.files, *self.found.shared) for parent in _parents(file)}
        for path, target in sorted(self.found.links.items()):
            known = target in self.found.files or target in folders or target in (".", *self.found.shared)
            inside = any(str(parent) in self.found.shared for parent in _parents(target))
            if not known and not inside and target not in self.found.links:
                del self.found.links[path]
                self.found.left_out[path] = f"a link to {target}, which is left out"

    def _share_crowded_folders(self) -> None:
        """Share a folder with very many shared entries as a whole, if none of it is source (`data/.gitkeep`)."""
        found = self.found
        count = Counter(str(PurePosixPath(path).parent) for path in found.shared)
        crowded = {folder for folder, entries in count.items() if entries > _NEW_ENTRIES and folder != "."}
        for folder in sorted(crowded):
            inside = [path for path in found.files if path.startswith(f"{folder}/")]
            if not any(is_source(path) for path in inside):
                for path in inside:
                    del found.files[path]
                found.shared = {path: to for path, to in found.shared.items() if not path.startswith(f"{folder}/")}
                self._links = [path for path in self._links if not path.startswith(f"{folder}/")]
                self._share(folder)

    def _take_link(self, path: str) -> None:
        try:
            target = (self.root / path).resolve(strict=True)
        except (OSError, RuntimeError) as error:  # Python before 3.13 calls a loop a RuntimeError
            loop = isinstance(error, RuntimeError) or error.errno == errno.ELOOP
            there = Path(os.path.normpath((self.root / path).parent / (self.root / path).readlink()))
            if loop or there == self.root or self.root in there.parents:
                self.found.left_out[path] = "a link that leads to itself" if loop else "a link that leads nowhere"
                return
            target = there  # only other nodes have it, perhaps
        if not _can_be_listed(str(target)):
            self.found.left_out[path] = "it leads to a name that is not one line of text"
            return
        if target == self.root or self.root in target.parents:
            self.found.links[path] = str(target.relative_to(self.root))
        else:
            self.found.shared[path] = str(target)


def _in_repository(folder: Path) -> bool:
    return any((place / ".git").exists() for place in (folder, *folder.parents))


def _git(folder: Path, *words: str, check: bool = True) -> Sequence[str]:
    # No monitor and no hook of a repository is started, so a colleague's repository may be read. It is always this one,
    # whichever GIT_DIR or GIT_INDEX_FILE the job was submitted with.
    argv = ["git", "-c", "core.fsmonitor=false", "-c", "safe.directory=*", "-C", str(folder), *words]
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_GIT_S, check=check, env=env)
    return list(dict.fromkeys(os.fsdecode(part) for part in done.stdout.split(b"\0") if part))


def _git_words(error: Exception) -> str:
    told = os.fsdecode(getattr(error, "stderr", b"") or b"").strip()
    return told.splitlines()[0] if told else str(error)


def _walk(root: Path, path: str) -> Iterator[str]:
    """Yield everything below a folder except folders, without following links."""
    if not os.access(root / path, os.R_OK | os.X_OK):
        yield path
        return
    for entry in os.scandir(root / path):
        below = f"{path}/{entry.name}"
        if entry.is_dir(follow_symlinks=False) and not why_left_out(entry.name):
            yield from _walk(root, below)
        else:
            yield below


def _can_be_listed(path: str) -> bool:
    """Return whether the name can be written into the lists of a version."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return "\n" not in path and "\r" not in path


def _parents(path: str) -> Iterator[PurePosixPath]:
    return (parent for parent in PurePosixPath(path).parents if parent != PurePosixPath())


def _first_left_out(path: str) -> str:
    """Return the topmost entry on this path that is left out by its name."""
    names = path.split("/")
    end = next(i for i, name in enumerate(names, 1) if why_left_out(name))
    return "/".join(names[:end])


def by_reason(entries: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the entries grouped by their reason, in order."""
    found: dict[str, list[str]] = {}
    for path, reason in sorted(entries.items()):
        found.setdefault(reason, []).append(path)
    return found
