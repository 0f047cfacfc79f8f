"""Whose job's control group is it? `job_ID`; from Slurm 26.05 on the job's SLUID (unless `CgroupJobIdPaths=yes`).

A SLUID does not hold the job's number: the slurmstepd of the job knows both, for it is in the same group.
"""

from __future__ import annotations

import re

from slurm_robust.nodecheck.engine.context import Context
from slurm_robust.nodecheck.sources import processes, small_files

# Slurm writes it as `s` and 13 digits of Crockford's base 32.
SLUID = re.compile(r"s[0-9A-HJKMNP-TV-Z]{13}\Z")
_OF_NUMBER = re.compile(r"/job_(\d{1,10})(?:/|$)", re.MULTILINE)
_OF_SLUID = re.compile(r"slurmstepd\.scope/(s[0-9A-HJKMNP-TV-Z]{13})(?:/|$)", re.MULTILINE)


def job_of(context: Context, cgroup: str) -> int | None:
    """Return the job that the lines of a /proc/PID/cgroup name; None for none, and for a SLUID without a slurmstepd."""
    if match := _OF_NUMBER.search(cgroup):
        return int(match[1])
    match = _OF_SLUID.search(cgroup)
    return sluids(context).get(match[1]) if match else None


def sluids(context: Context) -> dict[str, int]:
    """Return the job of each SLUID that names a control group with a slurmstepd in it."""
    found = {}
    for pid, job in processes.job_managers(context).items():
        if match := _OF_SLUID.search(small_files.read_text(context.path(f"/proc/{pid}/cgroup"), 4096)):
            found[match[1]] = job
    return found
