"""Is the loopback interface up?

Without it a machine reaches none of its own addresses: ranks of one node do not find each other.
"""

from __future__ import annotations

from slurm_robust.nodecheck.checks import Check, Context, Facts, Finding, Options
from slurm_robust.nodecheck.sources import network_links, small_files

_IFF_UP = 0x1
_IFF_LOOPBACK = 0x8


def probe(context: Context, options: Options) -> Facts:
    """Flags of `lo` (netdevice(7)), None if they cannot be read."""
    return {"flags": small_files.hexadecimal(small_files.word(context.path(network_links.NET) / "lo" / "flags", 16))}


def judge(facts: Facts, options: Options) -> Finding:
    """Fail if the interface is down: everything sent to an own address goes through it."""
    flags = facts["flags"]
    if flags is None or not flags & _IFF_LOOPBACK:
        return Finding.skip("not_seen", "the loopback interface cannot be seen", facts)
    if not flags & _IFF_UP:
        return Finding.fail("loopback_down", "the loopback interface is down", "`ip link set lo up`", facts)
    return Finding.passed("loopback_up", "the loopback interface is up", facts)


check = Check(**Check.parts_of(__name__), reads="/sys/class/net/lo/flags", cost="one read", lane="files")
