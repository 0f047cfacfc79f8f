"""Reads network interfaces and the interfaces below them: bonds, VLANs and bridges resolved down to the cards.

The facts come from /sys/class/net and /proc/net/route: an interface's name says nothing. (ABI: sysfs-class-net.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from slurm_robust.nodecheck.engine.context import Context
from slurm_robust.nodecheck.sources import rdma, small_files

NET = "/sys/class/net"
_IFF_UP = 0x1
_RTF_UP = 0x1
_RTF_REJECT = 0x200
_NO_ADDRESS_6 = "0" * 32
_MAX_DEPTH = 4
_MAX_INTERFACES = 128
_DOWN = ("down", "lowerlayerdown", "notpresent")

Interface = dict[str, Any]


def default_interfaces(ipv4: str, ipv6: str) -> list[str]:
    """Interfaces with a default route, from the texts of /proc/net/route and /proc/net/ipv6_route.

    Interfaces are taken from the routes and not guessed from their names: `ens10f0` is one, `virbr0-calibrate` is not
    unless a route says so.
    """
    names: list[str] = []
    for line in ipv4.splitlines()[1:]:
        cells = line.split()
        numbers = [small_files.hexadecimal(cell) for cell in cells[1:8]]
        if len(numbers) == 7 and numbers[0] == 0 == numbers[6] and (numbers[2] or 0) & _RTF_UP:
            names.append(cells[0])
    for line in ipv6.splitlines():
        cells = line.split()
        flags = (small_files.hexadecimal(cells[8]) or 0) if len(cells) >= 10 else 0
        if flags & _RTF_UP and not flags & _RTF_REJECT and cells[0] == _NO_ADDRESS_6 and cells[1] == "00":
            names.append(cells[9])
    return sorted({name for name in names if name != "lo" and small_files.is_name(name)})


def routed(context: Context) -> list[str]:
    """Interfaces of this machine's default routes."""
    net = context.path("/proc/net")
    return context.once(
        "default_interfaces",
        lambda: default_interfaces(small_files.read_text(net / "route"), small_files.read_text(net / "ipv6_route")),
    )


def roce(context: Context) -> list[str]:
    """Interfaces over which RoCE runs, told by links alone: reading a port could wait for a card's firmware."""
    found = set()
    for device in small_files.names(context.path(rdma.CLASS)):
        own = context.path(rdma.CLASS) / device / "device"
        if not small_files.exists(own / "physfn"):
            found |= {
                name
                for name in small_files.names(own / "net")
                if small_files.word(context.path(NET) / name / "type", 8) == "1"
            }
    return sorted(found)


def stack(context: Context, names: Iterable[str]) -> dict[str, Interface]:
    """Return these interfaces and all interfaces below them; interfaces that do not exist are left out."""
    found: dict[str, Interface] = {}
    level = [name for name in names if small_files.is_name(name)]
    for _ in range(_MAX_DEPTH):
        below: list[str] = []
        for name in level:
            folder = context.path(NET) / name
            if name not in found and len(found) < _MAX_INTERFACES and small_files.is_folder(folder):
                found[name] = _read(folder)
                below += found[name]["lower"]
        level = below
    return found


def _read(folder: Path) -> Interface:
    names = small_files.names(folder)
    flags = small_files.hexadecimal(small_files.word(folder / "flags", 16))
    lower = [name.removeprefix("lower_") for name in names if name.startswith("lower_")]
    if "bridge" in names:
        # Whatever guests and containers hang on a bridge says nothing of the machine.
        lower = [
            name
            for name in lower
            if small_files.exists(folder.parent / name / "device")
            or small_files.exists(folder.parent / name / "bonding")
        ]
    speed = small_files.count(folder / "speed")
    return {
        "up": None if flags is None else bool(flags & _IFF_UP),
        "state": small_files.word(folder / "operstate", 32),
        "carrier": small_files.word(folder / "carrier", 8),
        # Virtual cards say -1 or 0, or 2^32 - 1 in old kernels.
        "mbps": speed if speed is not None and 0 < speed < 10_000_000 else 0,
        "duplex": small_files.word(folder / "duplex", 16),
        "mtu": small_files.count(folder / "mtu") or 0,
        "lower": lower,
        "card": "device" in names,
    }


def without_link(interface: Mapping[str, Any]) -> bool:
    """Return whether it surely has no link. Many healthy virtual devices say `unknown`, and a copy may say nothing."""
    return interface["state"] in _DOWN or interface["carrier"] == "0"


def cards(found: Mapping[str, Interface]) -> list[str]:
    """Return the cards of a stack: interfaces without another one below."""
    return [name for name, interface in found.items() if interface["card"] and not interface["lower"]]
