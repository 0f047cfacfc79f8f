"""Finds the names of a job's output files: Slurm's patterns, filled in."""

from __future__ import annotations

import glob
import re
from pathlib import Path

from slurm_robust.slurm.client import Job

_PATTERN = re.compile(r"%(\d{0,2})([A-Za-z%])")
_DEFAULT, _DEFAULT_OF_ARRAY = "slurm-%j.out", "slurm-%A_%a.out"


def output_patterns(job: Job) -> tuple[str, ...]:
    """Return where the job's batch script writes, stdout first: absolute paths for `glob.glob`, each once.

    If neither Slurm nor the accounting tells a name, sbatch's default in the job's working directory is taken.
    """
    default = _DEFAULT_OF_ARRAY if job.ref.array_job_id is not None else _DEFAULT
    paths = []
    for name in (job.std_out or default, job.std_err):
        path = expanded(name, job)
        if path and not path.startswith("/") and job.work_dir:
            path = f"{glob.escape(job.work_dir.rstrip('/'))}/{path}"
        if path.startswith("/") and path not in paths:
            paths.append(path)
    return tuple(paths)


def existing_output(job: Job) -> Path | None:
    """Return the file that a running job's batch script writes its stdout to; None if no single file has its name."""
    names = output_patterns(job)[:1] if job.batch else ()
    found = [path for name in names for path in glob.glob(name)]  # noqa: PTH207 (an absolute pattern)
    return Path(found[0]) if len(found) == 1 else None


def expanded(name: str, job: Job) -> str:
    """Return a name with its patterns (`%j`, `%A_%a`, …) filled in, and `*` for what only the running job knows."""
    ref = job.ref
    known: dict[str, str | int | None] = {
        "j": ref.job_id, "J": ref.job_id, "A": ref.array_job_id or ref.job_id, "a": ref.array_task_id, "u": job.user,
        "x": job.name, "N": job.batch_host.partition(".")[0] or None, "n": 0, "t": 0, "b": None, "s": None, "%": "%",
    }  # fmt: skip

    def value(found: re.Match[str]) -> str:
        width, letter = found[1], found[2]
        if letter not in known:
            return glob.escape(found[0])
        text = known[letter]
        if text is None:
            return "*"
        return f"{text:0{int(width)}d}" if width and isinstance(text, int) else glob.escape(str(text))

    kept, last = [], 0
    for found in _PATTERN.finditer(name):
        kept += [glob.escape(name[last : found.start()]), value(found)]
        last = found.end()
    return "".join((*kept, glob.escape(name[last:])))
