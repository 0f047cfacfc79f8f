"""Have the RoCE ports the addresses (GIDs) by which peers reach them?"""

from __future__ import annotations

from pathlib import Path

from slurm_robust.nodecheck.checks import Check, Context, Facts, Finding, Option, Options, Status
from slurm_robust.nodecheck.engine.faults import Fault, Faults, conclude, some
from slurm_robust.nodecheck.sources import rdma, small_files

_MAX_GIDS = 16
"""mlx5 fills its table from the front: two entries for each address of the interface and of its VLANs."""
_LINK_LOCAL = "fe80:"


def probe(context: Context, options: Options) -> Facts:
    """Read the first GIDs of each active RoCE port with their types, and its interface's MTU."""
    ports = []
    for device, port in rdma.all_ports(rdma.devices(context), options["ignore"]):
        if port["layer"] != "Ethernet" or device["iwarp"] or not rdma.is_active(port):
            continue
        folder = context.path(rdma.CLASS) / device["name"] / "ports" / str(port["port"])
        net = context.path("/sys/class/net") / port["netdev"] if port["netdev"] else None
        ports.append(
            {
                "name": rdma.label(device, port),
                "group": [device["type"], device["board"], port["port"]],
                "netdev": port["netdev"],
                "gids": _gids(folder),
                "mtu": small_files.count(net / "mtu") if net else None,
            }
        )
    return {"ports": ports}


def _gids(port: Path) -> list[list[str]] | None:
    """Type and text of the GIDs that are set; None if the kernel shows no table."""
    numbers = [name for name in small_files.names(port / "gids") if name.isascii() and name.isdigit()]
    if not numbers:
        return None
    found = []
    for number in numbers[:_MAX_GIDS]:
        gid = small_files.word(port / "gids" / number, 64)
        if gid.strip("0:"):
            found.append([small_files.word(port / "gid_attrs" / "types" / number, 32), gid])
    return found


def grade(gids: list[list[str]]) -> str:
    """Return the best address among them: `routable`, `local` (link-local only), `old` (RoCE v1 only) or `none`."""
    second = [gid for kind, gid in gids if kind == "RoCE v2"]
    if any(not gid.lower().startswith(_LINK_LOCAL) for gid in second):
        return "routable"
    if second:
        return "local"
    return "old" if gids else "none"


def _faults(ports: list[Facts], options: Options) -> Faults:
    status = Status.FAIL if options["required"] else Status.WARN
    for reason, sentence in (
        ("none", "no GID on {}: RoCE cannot be used there"),
        ("old", "no RoCE v2 GID on {}, only RoCE v1: it cannot be routed"),
    ):
        names = [port["name"] for port in ports if grade(port["gids"]) == reason]
        if names:
            remedy = "give the interface an address: `ip addr`, `rdma link`, `show_gids`"
            yield Fault(status, f"gid_{reason}", sentence.format(some(names)), remedy)


def _odd(ports: list[Facts]) -> Faults:
    """Return a port's lacks that most of its sisters do not have: an IP address, the same MTU."""
    groups: dict[str, list[Facts]] = {}
    for port in ports:
        groups.setdefault(str(port["group"]), []).append(port)
    for group in groups.values():
        routable = [port for port in group if grade(port["gids"]) == "routable"]
        local = [port["name"] for port in group if grade(port["gids"]) == "local"]
        if local and 2 * len(routable) > len(group):
            sentence = f"{some(local)} has no IP address (link-local GID only), its sisters have"
            yield Fault.warn("gid_link_local", sentence, "give the interface an address: `ip addr`")
        mtus = [port["mtu"] for port in group if port["mtu"]]
        for port in group:
            if port["mtu"] and 2 * mtus.count(max(mtus)) > len(group) and port["mtu"] < max(mtus):
                sentence = f"{port['netdev']} ({port['name']}) has MTU {port['mtu']}, its sisters {max(mtus)}"
                yield Fault.warn("mtu_odd", sentence, f"`ip link set {port['netdev']} mtu {max(mtus)}`")


def judge(facts: Facts, options: Options) -> Finding:
    """Warn of an active RoCE port without a RoCE v2 GID; fail if the site requires one."""
    if not facts["ports"]:
        return Finding.skip("no_roce", "no RoCE port is active")
    ports = [port for port in facts["ports"] if port["gids"] is not None]
    evidence = {"ports": {port["name"]: [port["netdev"], grade(port["gids"]), port["mtu"]] for port in ports}}
    if not ports:
        return Finding.skip("no_gid_table", "the kernel shows no GIDs here", evidence)
    healthy = Finding.passed("gids_present", f"{len(ports)} RoCE ports have RoCE v2 GIDs", evidence)
    return conclude([*_faults(ports, options), *_odd(ports)], healthy, evidence)


check = Check(
    **Check.parts_of(__name__),
    reads="/sys/class/infiniband/*/ports/*/{gids,gid_attrs}, /sys/class/net/*/mtu",
    cost="up to 32 small reads a RoCE port, 1 ms",
    lane=rdma.LANE,
    options={
        "required": Option(False, "fail where an active port has no RoCE v2 GID", "ours: it may be for management"),
        "ignore": Option([], "list of devices, ports, interfaces or boards to ignore", "ours: none is"),
    },
)
