"""Is there a way out: a default route, and a gateway that answers?"""

from __future__ import annotations

import sys

from slurm_robust.nodecheck.checks import Check, Context, Facts, Finding, Option, Options
from slurm_robust.nodecheck.engine import check_state
from slurm_robust.nodecheck.engine.faults import Fault, Faults, conclude, some
from slurm_robust.nodecheck.sources import network_links, small_files

_RTF_UP_GATEWAY = 0x3
_ATF_COM = 0x2
"""A neighbour whose hardware address is known (`ATF_COM` of <net/if_arp.h>)."""


def gateways(text: str) -> list[str]:
    """IPv4 gateways of default routes, from /proc/net/route (addresses there are in the machine's byte order)."""
    found = []
    for line in text.splitlines()[1:]:
        cells = line.split()
        numbers = [small_files.hexadecimal(cell) for cell in cells[1:8]]
        if len(numbers) != 7 or None in numbers:
            continue
        target, gateway, flags, mask = numbers[0], numbers[1] or 0, numbers[2] or 0, numbers[6]
        if target == 0 == mask and flags & _RTF_UP_GATEWAY == _RTF_UP_GATEWAY and 0 < gateway < 1 << 32:
            found.append(".".join(map(str, gateway.to_bytes(4, sys.byteorder))))
    return sorted(set(found))


def neighbours(text: str) -> dict[str, bool]:
    """IPv4 address → whether its hardware address is known, from /proc/net/arp."""
    found: dict[str, bool] = {}
    for line in text.splitlines()[1:]:
        cells = line.split()
        flags = small_files.hexadecimal(cells[2]) if len(cells) >= 6 else None
        if flags is not None:
            found[cells[0]] = found.get(cells[0], False) or bool(flags & _ATF_COM)
    return found


def probe(context: Context, options: Options) -> Facts:
    """Read default routes, their gateways, and the gateways' entries in the neighbour table."""
    net = context.path("/proc/net")
    known = neighbours(small_files.read_text(net / "arp"))
    return {
        "seen": small_files.exists(net / "route") or small_files.exists(net / "ipv6_route"),
        "interfaces": network_links.routed(context),
        "gateways": {address: known.get(address) for address in gateways(small_files.read_text(net / "route"))},
        **check_state.since(context, check.name),
    }


def _faults(facts: Facts, options: Options) -> Faults:
    if not facts["interfaces"]:
        remedy = "`ip route`; restart the network configuration"
        if options["required"]:
            yield Fault.fail("route_missing", "there is no default route", remedy)
        elif check_state.of_this_boot(facts).get("had"):
            yield Fault.warn("route_lost", "the default route has gone since an earlier run", remedy)
    silent = [address for address, answers in facts["gateways"].items() if answers is False]
    if silent:
        # Also so for the blink of an eye while it is asked.
        sentence = f"gateway {some(silent)} does not answer to ARP"
        yield Fault.warn("gateway_silent", sentence, f"`ip neigh show {silent[0]}`; look at switch and VLAN")


def judge(facts: Facts, options: Options) -> Finding:
    """Fail only if the site requires a default route and there is none: many fabrics do without."""
    evidence = {"interfaces": facts["interfaces"], "gateways": facts["gateways"]}
    if not facts["seen"]:
        return Finding.skip("no_table", "there is no routing table to read", evidence)
    if facts["interfaces"]:
        said = f"default route by {some(facts['interfaces'])}"
        healthy = Finding.passed("route_present", said, evidence)
    else:
        healthy = Finding.skip("no_default_route", "the node has no default route", evidence)
    return conclude(_faults(facts, options), healthy, evidence)


def remember(facts: Facts, options: Options) -> Facts | None:
    """Keep whether this boot has had a default route."""
    had = bool(facts["interfaces"] or check_state.of_this_boot(facts).get("had"))
    new = {"boot_id": facts["boot_id"], "had": had}
    return None if new == facts["kept"] else new


check = Check(
    **Check.parts_of(__name__),
    reads="/proc/net/route, /proc/net/ipv6_route, /proc/net/arp",
    cost="three small reads",
    lane="files",
    options={"required": Option(False, "fail if there is none", "ours: only the site knows its network")},
)
