"""Where does this job's output go? Found out from the open files of a process, without asking Slurm."""

from __future__ import annotations

import stat
from pathlib import Path


def own_output_files(process: int | str = "self") -> list[Path]:
    """The files that a process's stdout and stderr go to (in a batch job: the job's own output files)."""
    out: list[Path] = []
    for fd in (1, 2):
        try:
            link = Path(f"/proc/{process}/fd/{fd}")
            if stat.S_ISREG(link.stat().st_mode):
                path = link.readlink()
                if path not in out:
                    out.append(path)
        except OSError:
            continue
    return out
