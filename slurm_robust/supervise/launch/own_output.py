"""Finds the files that a job's output goes to, from the open files of processes and without asking Slurm."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST_PIPES = 4
"""`srun … | grep … | tee FILE` has two."""


def own_output_files(process: int | str = "self") -> list[Path]:
    """Return the files that a process's stdout and stderr go to: in a batch job, the job's own output files.

    A pipe is followed to the file that its reader writes, as in `srun … | tee FILE`.
    """
    out: list[Path] = []
    for fd in (1, 2):
        out += [path for path in _behind(process, fd, _MOST_PIPES) if path not in out]
    return out


def _behind(process: int | str, fd: int, pipes_left: int) -> list[Path]:
    """Return the file that a descriptor leads to. The reader of a pipe may write several: its stdout tells most."""
    link = Path(f"/proc/{process}/fd/{fd}")
    try:
        mode, target = link.stat().st_mode, link.readlink()
    except OSError:
        return []
    if stat.S_ISREG(mode):
        return [target]
    if not stat.S_ISFIFO(mode) or not pipes_left:
        return []
    for reader in _readers(target):
        # What `tee` writes is whole, and what comes out of the next pipe may be filtered.
        found = _behind(reader, 1, 0) or _written(reader)[:1] or _behind(reader, 1, pipes_left - 1)
        if found:
            return found
    return []


def _readers(pipe: Path) -> Iterator[int]:
    """Yield the processes of this user whose stdin is this pipe."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # another user's, or it has ended
            if (process / "fd/0").readlink() == pipe:
                yield int(process.name)


def _written(process: int) -> list[Path]:
    """Return the regular files that a process writes, but for its stdout and stderr."""
    found: list[Path] = []
    with contextlib.suppress(OSError):  # it has ended
        links = sorted(Path(f"/proc/{process}/fd").iterdir(), key=lambda link: int(link.name))
        for link in (link for link in links if int(link.name) > 2 and stat.S_ISREG(link.stat().st_mode)):
            flags = Path(f"/proc/{process}/fdinfo/{link.name}").read_text("ascii").partition("flags:")[2].split()[0]
            if int(flags, 8) & os.O_ACCMODE != os.O_RDONLY:
                found.append(link.readlink())
    return found
