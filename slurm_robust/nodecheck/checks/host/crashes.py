"""Did the kernel crash before this boot?"""

from __future__ import annotations

import time

from slurm_robust.nodecheck.checks import Check, Context, Facts, Finding, Option, Options
from slurm_robust.nodecheck.sources import mounts, small_files

# Where firmware's store, kdump and systemd keep what a crashed kernel left.
_PLACES = (
    ("/sys/fs/pstore", "dmesg-*"),
    ("/var/lib/systemd/pstore", "*"),
    ("/var/crash", "*/vmcore*"),
    ("/var/crash", "*/dump.*"),
    ("/var/crash", "*/dmesg.*"),
    ("/var/crash", "*/vmcore-dmesg.txt"),
)
_MAX_FILES = 1000
_DAY_S = 86_400.0


def probe(context: Context, options: Options) -> Facts:
    """Ages in days of the traces there are, by place; folders that may not be listed, or are shared, have none."""
    now_s = time.time()
    found: list[dict[str, object]] = []
    table = mounts.parse(small_files.read_text(context.path("/proc/self/mountinfo"), 4 << 20))
    for place, pattern in _PLACES:
        mount = mounts.over(table, place)
        if mount is not None and mounts.is_remote(mount):
            continue  # machines without disks dump there together
        for path in small_files.matching(context.path(place), pattern)[:_MAX_FILES]:
            try:
                info = path.lstat()
            except OSError:
                continue
            name = f"{place}/{path.relative_to(context.path(place))}"
            found.append({"path": name, "age_days": round((now_s - info.st_mtime) / _DAY_S, 3)})
    found.sort(key=lambda trace: trace["age_days"])  # type: ignore[arg-type, return-value]
    return {"traces": found[:32]}


def judge(facts: Facts, options: Options) -> Finding:
    """Warn while the trace is young, and never fail: one crash is an incident, and the node came back."""
    young = [trace for trace in facts["traces"] if 0 <= trace["age_days"] <= options["warn_days"]]
    if young:
        hours = young[0]["age_days"] * 24
        sentence = f"the kernel crashed {hours:.0f} h ago and left {young[0]['path']}"
        remedy = "read it; run `srobust check --stage full`; have the node repaired if it repeats"
        return Finding.warn("kernel_crashed", sentence, remedy, {"traces": young})
    return Finding.passed("no_crash", "no trace of a recent crash")


check = Check(
    **Check.parts_of(__name__),
    reads="the names and times of files in /sys/fs/pstore, /var/lib/systemd/pstore and /var/crash",
    cost="six listings, 1 ms; in a process of its own",
    options={
        "warn_days": Option(1.0, "age in days up to which a trace warns; 0: never", "ours: whoever is on call sees it")
    },
)
