"""Does the node swap, or do its processes wait for memory?"""

from __future__ import annotations

import re

from slurm_robust.nodecheck.checks import Check, Context, Facts, Finding, Option, Options
from slurm_robust.nodecheck.engine import check_state, counters
from slurm_robust.nodecheck.sources import small_files

_VMSTAT = re.compile(r"^(pswpin|pswpout) (\d{1,18})$", re.MULTILINE)
_FULL = re.compile(r"^full avg10=[\d.]{1,9} avg60=(\d{1,3}(?:\.\d{1,4})?) ", re.MULTILINE)
_SWAPS = re.compile(r"^(/\S*)\s+\w+\s+(\d{1,18})\s+(\d{1,18})\s", re.MULTILINE)
_MIN_WINDOW_S = 10.0


def probe(context: Context, options: Options) -> Facts:
    """Swap areas, pages moved since boot, and the share of time in which everybody waited for memory."""
    areas = _SWAPS.findall(small_files.read_text(context.path("/proc/swaps"), 1 << 16))
    full = _FULL.search(small_files.read_text(context.path("/proc/pressure/memory"), 1024))
    return {
        "areas": [
            {"path": path, "kb": int(size), "used_kb": int(used), "disk": not path.startswith("/dev/zram")}
            for path, size, used in areas[:32]
        ],
        "counts": {
            name: int(value) for name, value in _VMSTAT.findall(small_files.read_text(context.path("/proc/vmstat")))
        },
        "stalled_percent": float(full[1]) if full else None,
        **check_state.since(context, check.name),
    }


def judge(facts: Facts, options: Options) -> Finding:
    """Warn at most: another job on the node may need the memory."""
    evidence = {key: facts[key] for key in ("areas", "stalled_percent")}
    on_disk = [area["path"] for area in facts["areas"] if area["disk"]]
    if options["expected"] == "off" and on_disk:
        sentence = f"swap is on ({', '.join(on_disk[:3])}), off is expected"
        return Finding.warn("swap_on", sentence, "`swapoff -a`, and take it out of /etc/fstab", evidence)
    if options["expected"] == "on" and not facts["areas"]:
        return Finding.warn("swap_off", "swap is off, on is expected", "`swapon -a`", evidence)
    grown = counters.grown(facts)
    window_s = max((growth.window_s for growth in grown.values()), default=0.0)
    if window_s >= _MIN_WINDOW_S and on_disk:
        per_s = sum(growth.delta for growth in grown.values()) / window_s
        if per_s >= options["warn_pages_per_s"] > 0:
            sentence = f"the node swaps {per_s:.0f} pages a second"
            return Finding.warn("swapping", sentence, "find out who needs the memory: `top -o SWAP`", evidence)
    stalled = facts["stalled_percent"]
    if stalled is not None and stalled >= options["warn_stalled_percent"] > 0:
        sentence = f"all processes waited for memory {stalled:.0f} % of the last minute"
        return Finding.warn("memory_stalls", sentence, "find out who needs the memory: `top -o RES`", evidence)
    if not facts["counts"] and stalled is None:
        return Finding.skip("no_vmstat", "the kernel does not report swapping here")
    return Finding.passed("no_swapping", "the node does not swap", evidence)


remember = counters.remember
check = Check(
    **Check.parts_of(__name__),
    reads="/proc/swaps, /proc/vmstat, /proc/pressure/memory",
    cost="three reads, under 1 ms",
    lane="files",
    options={
        "expected": Option(
            "", "`on` or `off` (compressed memory, zram, is no swap here); empty: any", "ours", allowed=("on", "off")
        ),
        "warn_pages_per_s": Option(
            1000.0, "pages swapped a second since the last run from which it warns; 0: never", "ours: 4 MB/s"
        ),
        "warn_stalled_percent": Option(
            10.0,
            "share of the last minute in which all waited for memory from which it warns; 0: never",
            "ours: systemd-oomd's own limit is 60 %",
        ),
    },
)
