"""Did finished jobs leave control groups behind?"""

from __future__ import annotations

import os
import re

from slurm_robust.nodecheck.checks import Check, Context, Facts, Finding, Option, Options
from slurm_robust.nodecheck.sources import job_cgroups, processes, small_files

_JOB = re.compile(r"job_(\d{1,10})\Z")
# Version 1: /sys/fs/cgroup/<controller>/slurm*/uid_*/job_*; version 2: /sys/fs/cgroup/SLICE/*slurmstepd.scope/.
_PATTERNS = ("*/slurm*/uid_*/job_*", "slurm*/uid_*/job_*", "*.slice/*slurmstepd.scope/*")
_MAX_FOLDERS = 5000
_MAX_TOLD = 5


def probe(context: Context, options: Options) -> Facts:
    """Jobs with a control group and no slurmstepd, and how many processes are in it."""
    alive = {*map(str, {*processes.job_managers(context).values(), context.job_id}), *job_cgroups.sluids(context)}
    alive.add(os.environ.get("SLURM_JOB_SLUID", ""))  # in the epilog its slurmstepd may have ended
    left: dict[str, int] = {}
    seen = 0
    for pattern in _PATTERNS:
        for folder in small_files.matching(context.path("/sys/fs/cgroup"), pattern)[:_MAX_FOLDERS]:
            match = _JOB.match(folder.name) or job_cgroups.SLUID.match(folder.name)
            if match is None:
                continue
            seen += 1
            job = match[match.lastindex or 0]
            if job in alive:
                continue
            inside = re.search(r"^populated 1$", small_files.text(folder / "cgroup.events"), re.MULTILINE)
            count = 1 if inside else 0
            for place in (
                folder,
                *small_files.matching(folder, "step_*"),
                *small_files.matching(folder, "step_*/task_*"),
                *small_files.matching(folder, "step_*/user/task_*"),
            ):
                count = max(count, len(small_files.text(place / "cgroup.procs", 1 << 16).split()))
            left[job] = max(left.get(job, 0), count)
    return {"left": left, "seen": seen}


def judge(facts: Facts, options: Options) -> Finding:
    """Warn at most: processes may be ending, and an empty group costs a little kernel memory."""
    left = facts["left"]
    held = sorted((job for job, count in left.items() if count), key=lambda job: (len(job), job))
    if held:
        told = ", ".join(held[:_MAX_TOLD])
        sentence = f"processes of finished jobs are in their control groups yet ({told})"
        remedy = "`systemd-cgls` shows them; end them, or reboot where they sit in the kernel (state D)"
        return Finding.warn("cgroup_processes", sentence, remedy, facts)
    if len(left) >= options["warn_empty"] > 0:
        sentence = f"{len(left)} control groups of finished jobs were not removed"
        return Finding.warn("cgroup_leftovers", sentence, "`rmdir` them deepest first; look at slurmd's log", facts)
    if not facts["seen"]:
        return Finding.skip("no_job_cgroups", "no control groups of Slurm's jobs")
    return Finding.passed("cgroups_clean", "no control group of a finished job holds a process", facts)


check = Check(
    **Check.parts_of(__name__),
    reads="/sys/fs/cgroup/**/{job_*,SLUID}/, the command lines of slurmstepd",
    cost="a few reads a job, 1–3 ms",
    lane="files",
    options={
        "warn_empty": Option(100, "empty groups from which it warns; 0: never", "ours: a month of a bug's leftovers")
    },
)
