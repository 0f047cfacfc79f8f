"""Is a limit of the kernel nearly met: processes, open files, asynchronous I/O, keys?"""

from __future__ import annotations

from slurm_robust.nodecheck.checks import Check, Context, Facts, Finding, Option, Options
from slurm_robust.nodecheck.sources import small_files

_NEVER = 1 << 50
"""A limit of this size (file-max on 64-bit machines) means no limit."""


def _pair(used: int | None, limit: int | None) -> dict[str, int] | None:
    return {"used": used, "limit": limit} if used is not None and limit and 0 < limit < _NEVER else None


def probe(context: Context, options: Options) -> Facts:
    """Read the use and the maximum of each limit that the kernel tells."""
    kernel, fs = context.path("/proc/sys/kernel"), context.path("/proc/sys/fs")
    load = small_files.text(context.path("/proc/loadavg")).split()
    tasks = load[3].partition("/")[2] if len(load) > 3 else ""
    most = [value for name in ("pid_max", "threads-max") if (value := small_files.number(kernel / name))]
    files = small_files.text(fs / "file-nr").split()
    numbers = [int(part) if part.isdecimal() and len(part) < 19 else None for part in (*files[:3], "", "", "")]
    keys = _keys_of_root(small_files.text(context.path("/proc/key-users"), 1 << 16))
    used = {
        "processes": _pair(int(tasks) if tasks.isdecimal() and len(tasks) < 19 else None, min(most, default=None)),
        "open files": _pair(numbers[0], numbers[2]),
        "asynchronous I/O": _pair(small_files.number(fs / "aio-nr"), small_files.number(fs / "aio-max-nr")),
        "keys of root": keys,
    }
    return {"limits": {name: pair for name, pair in used.items() if pair}}


def _keys_of_root(text: str) -> dict[str, int] | None:
    """Return the limits in `0: usage nkeys/nikeys qnkeys/maxkeys qnbytes/maxbytes`: root's containers meet them."""
    for line in text.splitlines():
        cells = line.split()
        if len(cells) == 5 and cells[0] == "0:":
            used, _, limit = cells[3].partition("/")
            if used.isdecimal() and limit.isdecimal() and len(used) < 19 and len(limit) < 19:
                return _pair(int(used), int(limit))
    return None


def judge(facts: Facts, options: Options) -> Finding:
    """Warn at most: the present job may be the one that uses so much."""
    limits = facts["limits"]
    if not limits:
        return Finding.skip("no_limits", "the kernel reports no limits here")
    near = {name: pair for name, pair in limits.items() if pair["used"] >= pair["limit"] * options["warn_share"]}
    if near:
        said = ", ".join(f"{pair['used']} of {pair['limit']} {name}" for name, pair in near.items())
        remedy = "find out who uses them; raise kernel.pid_max, kernel.threads-max, fs.file-max, fs.aio-max-nr or "
        return Finding.warn("limit_near", said, remedy + "kernel.keys.root_maxkeys", facts)
    return Finding.passed("limits_far", "no limit of the kernel is near", facts)


check = Check(
    **Check.parts_of(__name__),
    reads="/proc/loadavg, /proc/sys/{kernel/{pid_max,threads-max},fs/{file-nr,aio-nr,aio-max-nr}}, /proc/key-users",
    cost="seven small reads, under 1 ms",
    lane="files",
    options={"warn_share": Option(0.9, "share in use from which it warns", "ours")},
)
