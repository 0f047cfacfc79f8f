"""Are the network interfaces up and fast through which this node reaches the rest of the world?"""

from __future__ import annotations

from typing import Any

from slurm_robust.nodecheck.checks import Check, Context, Facts, Finding, Option, Options, Status
from slurm_robust.nodecheck.engine import check_state
from slurm_robust.nodecheck.engine.faults import Fault, Faults, conclude, some
from slurm_robust.nodecheck.sources import network_links


def probe(context: Context, options: Options) -> Facts:
    """Read interfaces with a default route, the site's, those of RoCE, and the interfaces below all of these."""
    default, roce, site = (
        network_links.routed(context),
        network_links.roce(context),
        [str(name) for name in options["interfaces"]],
    )
    return {
        "default": default,
        "roce": roce,
        "site": site,
        "interfaces": network_links.stack(context, [*default, *site, *roce]),
        **check_state.since(context, check.name),
    }


def _links(facts: Facts) -> Faults:
    """Interfaces that are needed and have no link."""
    interfaces = facts["interfaces"]
    for name in facts["site"]:
        if name not in interfaces:
            yield Fault.fail("interface_missing", f"{name} does not exist", "`ip link`; look for its card: `lspci`")
        elif network_links.without_link(interfaces[name]):
            remedy = f"`ip link show {name}`; look at cable and switch port"
            yield Fault.fail("link_down", f"no link on {name}", remedy)
    there = [name for name in facts["default"] if name in interfaces]
    down = [name for name in there if network_links.without_link(interfaces[name])]
    if down:
        status = Status.FAIL if len(down) == len(there) else Status.WARN
        remedy = f"`ip link show {down[0]}`; look at cable and switch port"
        yield Fault(status, "link_down", f"no link on {some(down)} (default route)", remedy)


def _wanted(table: Any, name: str) -> int:
    wanted = table.get(name, table.get("default"))
    return wanted if isinstance(wanted, int) else 0


def _speeds(facts: Facts, options: Options) -> Faults:
    best = check_state.best(facts)
    for name, interface in facts["interfaces"].items():
        if network_links.without_link(interface):
            continue
        before, wanted = best.get(name, 0), _wanted(options["min_mbps"], name)
        remedy = f"`ethtool {name}`; look at cable, transceiver and switch port"
        said = f"{name} runs at {interface['mbps']} Mb/s"
        if 0 < interface["mbps"] < wanted:
            yield Fault.fail("speed_below_expected", f"{said}, {wanted} are expected", remedy)
        elif 0 < interface["mbps"] < before and not wanted:
            yield Fault.warn("speed_dropped", f"{said}, it ran at {before} before", remedy)
        if interface["duplex"] == "half":
            yield Fault.warn("half_duplex", f"{name} runs half duplex", remedy)


def _mtus(facts: Facts, options: Options) -> Faults:
    interfaces = facts["interfaces"]
    for name, interface in interfaces.items():
        wanted = _wanted(options["mtu"], name)
        if 0 < interface["mtu"] < wanted:
            sentence = f"{name} has MTU {interface['mtu']}, {wanted} is expected"
            yield Fault.fail("mtu_below_expected", sentence, f"`ip link set {name} mtu {wanted}`")
        for lower in interface["lower"]:
            under = interfaces.get(lower, {}).get("mtu", 0)
            if 0 < under < interface["mtu"]:
                sentence = f"{name} has MTU {interface['mtu']}, {lower} below it {under}"
                yield Fault.warn("mtu_above_lower", sentence, f"`ip link set {lower} mtu {interface['mtu']}`")


def judge(facts: Facts, options: Options) -> Finding:
    """Fail if no interface with a default route has a link, or there is less than the site expects.

    One of several default routes without a link warns, as do half duplex and a speed that fell.
    """
    found = facts["interfaces"]
    evidence = {name: facts[name] for name in ("default", "roce", "site", "interfaces")}
    if not found:
        said = "no interface with a default route can be seen" if facts["default"] else "the node has no default route"
        healthy = Finding.skip("no_interface" if facts["default"] else "no_default_route", said)
    else:
        up = [name for name in found if not network_links.without_link(found[name])]
        said = f"{some(name for name in up if name in facts['default'] + facts['site'] + facts['roce'])} is up"
        healthy = Finding.passed("link_up", said if up else "no interface that is needed is down", evidence)
    return conclude([*_links(facts), *_speeds(facts, options), *_mtus(facts, options)], healthy, evidence)


def remember(facts: Facts, options: Options) -> Facts | None:
    """Keep the fastest speed of each card in this boot."""
    best = check_state.best(facts)
    for name in network_links.cards(facts["interfaces"]):
        best[name] = max(best.get(name, 0), facts["interfaces"][name]["mbps"])
    new = {"boot_id": facts["boot_id"], "best": best}
    return None if new == facts["kept"] else new


def valid_while(facts: Facts, options: Options) -> list[tuple[str, ...]]:
    """Return the conditions that interfaces with a link keep it."""
    up = [name for name, interface in facts["interfaces"].items() if interface["state"] == "up"]
    return [("says", f"{network_links.NET}/{name}/operstate", "up") for name in up]


check = Check(
    **Check.parts_of(__name__),
    reads="/proc/net/route, /proc/net/ipv6_route, /sys/class/net/*, /sys/class/infiniband/*/device/net",
    cost="nine small reads an interface, 1 ms",
    strikes=2,
    lane="files",
    options={
        "interfaces": Option([], "interfaces that must have a link, besides default routes and RoCE", "ours: empty"),
        "min_mbps": Option({}, "Mb/s that interfaces must run at: {interface or `default`: Mb/s}", "ours: empty"),
        "mtu": Option({}, "bytes that an MTU must have at least: {interface or `default`: bytes}", "ours: empty"),
    },
)
