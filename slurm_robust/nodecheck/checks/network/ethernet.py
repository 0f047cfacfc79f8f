"""Is the network interface up through which this node reaches the rest of the world?"""

from __future__ import annotations

from slurm_robust.nodecheck.context import STAGES, Context, read_text
from slurm_robust.nodecheck.finding import Finding, Status
from slurm_robust.nodecheck.registry import Check, Facts, Options

_RTF_UP = 0x1
_RTF_REJECT = 0x200
_NO_ADDRESS_6 = "0" * 32


def default_interfaces(ipv4: str, ipv6: str) -> list[str]:
    """Interfaces with a default route, from the texts of /proc/net/route and /proc/net/ipv6_route.

    Interfaces are taken from the routes and not guessed from their names: `ens10f0` is one, `virbr0-calibrate` is none
    unless a route says so.
    """
    names: list[str] = []
    for line in ipv4.splitlines()[1:]:
        cells = line.split()
        try:
            if len(cells) >= 8 and int(cells[1], 16) == 0 and int(cells[7], 16) == 0 and int(cells[3], 16) & _RTF_UP:
                names.append(cells[0])
        except ValueError:
            continue
    for line in ipv6.splitlines():
        cells = line.split()
        try:
            flags = int(cells[8], 16) if len(cells) >= 10 else 0
        except ValueError:
            continue
        if flags & _RTF_UP and not flags & _RTF_REJECT and cells[0] == _NO_ADDRESS_6 and cells[1] == "00":
            names.append(cells[9])
    return sorted({name for name in names if name != "lo"})


def probe(context: Context, options: Options) -> Facts:
    """State and carrier of each interface that has a default route."""
    net = context.path("/proc/net")
    names = default_interfaces(read_text(net / "route"), read_text(net / "ipv6_route"))
    interfaces = {}
    for name in names:
        folder = context.path("/sys/class/net") / name
        interfaces[name] = {
            "state": read_text(folder / "operstate", 32).strip(),
            "carrier": read_text(folder / "carrier", 8).strip(),
        }
    return {"interfaces": interfaces}


def judge(facts: Facts, options: Options) -> Finding:
    """Fails where none of the interfaces with a default route has a link; some of several only warn.

    Many healthy virtual devices say `unknown`, and a saved or foreign tree says nothing: that is no fault.
    """
    interfaces = facts["interfaces"]
    if not interfaces:
        return Finding(Status.SKIP, "no_default_route", "the node has no default route")
    down = [
        name
        for name, said in interfaces.items()
        if said["state"] in ("down", "lowerlayerdown") or said["carrier"] == "0"
    ]
    if not down:
        return Finding(Status.PASS, "link_up", f"{', '.join(interfaces)} is up", evidence=facts)
    sentence = f"no link on {', '.join(down)} (default route)"
    remedy = f"`ip link show {down[0]}`; look at cable and switch port"
    status = Status.FAIL if len(down) == len(interfaces) else Status.WARN
    return Finding(status, "link_down", sentence, remedy, facts)


check = Check(
    name="ethernet",
    question="Is the network interface up through which this node reaches the rest of the world?",
    reads="/proc/net/route, /proc/net/ipv6_route, /sys/class/net/*/{operstate,carrier}",
    cost="a few small reads, under 1 ms",
    stages=STAGES,
    probe=probe,
    judge=judge,
    strikes=2,
    lane="files",
)
