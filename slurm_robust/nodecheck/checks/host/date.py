"""Is the date believable?"""

from __future__ import annotations

import re
import time

from slurm_robust.nodecheck.checks import Check, Context, Facts, Finding, Options
from slurm_robust.nodecheck.sources import small_files

_YEAR_S = 365.25 * 86_400
_DATES = (
    re.compile(r"\((\d{4})-(\d\d)-(\d\d)\)"),
    re.compile(r" (?:[A-Z][a-z]{2} ){2} ?\d{1,2} [\d:]{8} \w{2,5} (\d{4})"),
)
_FAR_YEARS = 20


def built_s(version: str) -> float | None:
    """Return when this kernel was built, in epoch seconds, from /proc/version; the year alone if no more is said."""
    for pattern in _DATES:
        found = pattern.findall(version)
        if not found:
            continue
        said = found[-1]
        year, month, day = (int(said[0]), int(said[1]), int(said[2])) if isinstance(said, tuple) else (int(said), 1, 1)
        if 1991 <= year <= 2200 and 1 <= month <= 12 and 1 <= day <= 31:
            return (year - 1970) * _YEAR_S + (month - 1) * 30.4 * 86_400 + (day - 1) * 86_400
    return None


def probe(context: Context, options: Options) -> Facts:
    """Now, and when the kernel was built."""
    version = small_files.text(context.path("/proc/version"), 1024)
    return {"here": context.real_root, "now_s": time.time(), "built_s": built_s(version)}


def judge(facts: Facts, options: Options) -> Finding:
    """Warns of a date before the kernel's own, or decades behind it: a dead battery and no time server."""
    if not facts["here"]:
        return Finding.skip("not_here", "a saved tree has no clock")
    built = facts["built_s"]
    if built is None:
        return Finding.skip("no_build_date", "the kernel does not say when it was built")
    today = time.strftime("%Y-%m-%d", time.gmtime(facts["now_s"]))
    remedy = "start chronyd, `chronyc makestep`; look at the board's battery"
    # A month's grace: a date is taken apart in whole months here.
    if facts["now_s"] < built - 31 * 86_400:
        return Finding.warn("date_in_the_past", f"it is {today} here, before this kernel was built", remedy, facts)
    if facts["now_s"] > built + _FAR_YEARS * _YEAR_S:
        sentence = f"it is {today} here, {_FAR_YEARS} years after this kernel was built"
        return Finding.warn("date_far_ahead", sentence, remedy, facts)
    return Finding.passed("date_believable", f"it is {today}", facts)


check = Check(
    **Check.parts_of(__name__),
    reads="/proc/version, the clock",
    cost="one read, under 1 ms",
    lane="files",
)
