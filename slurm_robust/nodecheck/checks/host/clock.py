"""Is the clock kept in step?

MUNGE refuses credentials of a clock that is minutes off; logs stop to line up long before.
"""

from __future__ import annotations

from slurm_robust.nodecheck.checks import Check, Context, Facts, Finding, Option, Options
from slurm_robust.nodecheck.sources import processes, small_files

_DAEMONS = (
    "/run/chrony/chronyd.pid",
    "/run/chronyd.pid",
    "/run/ntpd.pid",
    "/run/ntp/ntpd.pid",
    "/run/systemd/timesync",
)
_SILENT = frozenset({"phc2sys", "sfptpd", "timebeat"})
"""Followers of PTP that leave the kernel's flag as it is (phc2sys before linuxptp 3)."""
_CONTAINERS = ("/.dockerenv", "/run/.containerenv", "/run/systemd/container")
_STA_UNSYNC = 0x0040
_STA_NANO = 0x2000


def probe(context: Context, options: Options) -> Facts:
    """Read the kernel's clock discipline (adjtimex(2), read only); offset in µs."""
    if not context.real_root:
        return {"here": False}
    import ctypes  # noqa: PLC0415 (only this probe's own process pays for it)

    class Timex(ctypes.Structure):
        """`struct timex` as far as it is read; the kernel writes 208 bytes on 64-bit machines."""

        _fields_ = (
            ("modes", ctypes.c_uint),
            ("offset", ctypes.c_long),
            ("freq", ctypes.c_long),
            ("maxerror", ctypes.c_long),
            ("esterror", ctypes.c_long),
            ("status", ctypes.c_int),
            ("rest", ctypes.c_byte * 256),
        )

    timex = Timex()
    libc = ctypes.CDLL(None, use_errno=True)
    state = libc.adjtimex(ctypes.byref(timex))
    if state < 0:
        return {"here": True, "errno": ctypes.get_errno()}
    offset_us = timex.offset / 1000 if timex.status & _STA_NANO else float(timex.offset)
    return {
        "here": True,
        "errno": 0,
        "status": timex.status,
        "offset_us": offset_us,
        "max_error_us": timex.maxerror,
        "by": _otherwise(context),
        "daemon": any(small_files.exists(context.path(path)) for path in _DAEMONS),
        "container": any(small_files.exists(context.path(path)) for path in _CONTAINERS),
        # The first processor's flags are enough.
        "guest": " hypervisor" in small_files.read_text(context.path("/proc/cpuinfo"), 1 << 13),
    }


def _otherwise(context: Context) -> str:
    """Return who keeps the clock in step without telling the kernel so; empty if no known daemon does."""
    if small_files.exists(context.path("/run/ntpd.sock")):
        return "openntpd"
    return next((p.command for p in processes.scan(context) if p.command in _SILENT and p.state != "Z"), "")


def _unsynchronised(facts: Facts) -> Finding:
    """Return the finding that the kernel does not know of anything that keeps the clock in step."""
    if facts.get("by"):
        sentence = f"{facts['by']} keeps the clock, and does not tell the kernel how well"
        return Finding.skip("kept_otherwise", sentence, facts)
    if not facts.get("daemon") and (facts.get("container") or facts.get("guest")):
        sentence = "nobody keeps the clock in step here, and the host may"
        return Finding.skip("host_s_clock", sentence, facts)
    return Finding.warn("unsynchronised", "the clock is not kept in step", "start chronyd or ntpd", facts)


def judge(facts: Facts, options: Options) -> Finding:
    """Warn at most: a job can run with a clock that is off.

    A container has its host's clock, and a virtual machine without a time daemon mostly has its hypervisor's.
    """
    if not facts["here"]:
        return Finding.skip("not_here", "a saved tree has no clock")
    if facts["errno"]:
        return Finding.skip("no_adjtimex", f"adjtimex is not allowed here (errno {facts['errno']})", facts)
    offset_ms = facts["offset_us"] / 1000
    if facts["status"] & _STA_UNSYNC:
        return _unsynchronised(facts)
    if abs(offset_ms) > options["warn_offset_ms"]:
        sentence = f"the clock is {offset_ms:+.1f} ms off"
        return Finding.warn("clock_off", sentence, "`chronyc tracking`", facts)
    return Finding.passed("synchronised", f"the clock is {offset_ms:+.3f} ms off", facts)


check = Check(
    **Check.parts_of(__name__),
    reads="adjtimex(2), nothing is set; whether a time daemon, a container or a hypervisor is there; no other clock is "
    "asked, not even slurmctld's, so that a node which follows a wrong server passes",
    cost="one call, 5 ms for loading ctypes",
    strikes=2,
    lane="files",
    options={
        "warn_offset_ms": Option(50.0, "offset in ms above which it warns", "ours; chrony keeps a LAN below 1 ms")
    },
)
