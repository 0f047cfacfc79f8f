"""Reads RDMA devices and their ports as the kernel has them, InfiniBand, RoCE and EFA alike.

What a device is stands in /sys (`link_layer`, PCI ids, `node_type`); its name says nothing: `mlx5_bond_0`, `ibp0s1`,
`roceP2p1s0` and `rdmap16s27` are what a distribution or a cloud called them. (ABI: sysfs-class-infiniband.)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from slurm_robust.nodecheck.catalogue import network_cards
from slurm_robust.nodecheck.engine.context import Context
from slurm_robust.nodecheck.sources import pci, small_files

CLASS = "/sys/class/infiniband"
LANE = "rdma"
"""Reading a port asks the card's firmware: a hung card holds up this lane and no other."""

_RATE = re.compile(r"(\d{1,5}(?:\.\d{1,3})?) Gb/sec(?: \((\d{1,2})X\b)?")
_MAX_DEVICES = 128
_MAX_PORTS = 2
"""The most ports of a card: a device with more is a switch of virtual functions (switchdev), cabled at port 1."""

T = TypeVar("T")
Device = dict[str, Any]
Port = dict[str, Any]


def devices(context: Context) -> list[Device]:
    """Return all RDMA devices, read once a lane; plain JSON values."""
    return context.once("rdma_devices", lambda: _read(context))


def _read(context: Context) -> list[Device]:
    folder = context.path(CLASS)
    return [
        _device(folder / name, name)
        for name in small_files.names(folder)[:_MAX_DEVICES]
        if small_files.is_folder(folder / name)
    ]


def _device(folder: Path, name: str) -> Device:
    bus = folder / "device"
    vendor, model = (small_files.hexadecimal(small_files.word(bus / part)) for part in ("vendor", "device"))
    hca_type = small_files.word(folder / "hca_type")
    card = network_cards.lookup(vendor, model, hca_type)
    numbers = [port for port in small_files.names(folder / "ports") if port.isascii() and port.isdigit()]
    if len(numbers) > _MAX_PORTS:
        numbers = numbers[:1]
    return {
        "name": name,
        "type": hca_type or (f"{vendor:04x}:{model:04x}" if vendor is not None and model is not None else ""),
        "card": card.name,
        "board": small_files.word(folder / "board_id"),
        "fw": small_files.word(folder / "fw_ver"),
        "pci": _pci(folder),
        "kind": _kind(bus, card),
        "iwarp": "RNIC" in small_files.word(folder / "node_type"),
        "max_gbps": card.max_gbps,
        "floor_gbps": card.floor_gbps,
        "fixed_rate": card.fixed_rate,
        "ports": [_port(folder, number) for number in numbers],
    }


def _pci(folder: Path) -> str:
    """Return the PCI address behind a device, empty for one that has none or in a copy without links."""
    address = small_files.target(folder / "device")
    return address if pci.ADDRESS.match(address) else ""


def _kind(bus: Path, card: network_cards.Nic) -> str:
    """Return `card`, `slice`, `guest` or `soft`.

    A slice is a virtual function or subfunction whose card stands beside it on this node; a guest, one that was handed
    to this machine; a soft device is made by software on another interface.
    """
    if small_files.exists(bus / "physfn") or small_files.target(bus / "subsystem") == "auxiliary":
        return "slice"
    if card.virtual:
        return "guest"
    return "card" if small_files.exists(bus) or card is not network_cards.UNKNOWN else "soft"


def _port(folder: Path, number: str) -> Port:
    port = folder / "ports" / number
    gbps, lanes = rate(small_files.word(port / "rate"))
    netdev = _netdev(folder, port, number)
    return {
        "port": int(number),
        "layer": small_files.word(port / "link_layer"),
        "state": after_colon(small_files.word(port / "state")),
        "phys": after_colon(small_files.word(port / "phys_state")),
        "gbps": gbps,
        "lanes": lanes,
        "lid": small_files.hexadecimal(small_files.word(port / "lid")),
        "sm_lid": small_files.hexadecimal(small_files.word(port / "sm_lid")),
        "netdev": netdev,
    }


def _netdev(folder: Path, port: Path, number: str) -> str:
    """Return the interface of a port: its first GID's, else the one that the card has for it."""
    named = small_files.word(port / "gid_attrs" / "ndevs" / "0", 64)
    if small_files.is_name(named):
        return named
    own = folder / "device" / "net"
    every = small_files.names(own)
    fitting = [name for name in every if small_files.count(own / name / "dev_port") == int(number) - 1]
    return (fitting or every or [""])[0]


def rate(text: str) -> tuple[float, int]:
    """Return `400 Gb/sec (4X NDR)` as (400.0, 4); zeros for another shape."""
    match = _RATE.match(text)
    return (float(match[1]), int(match[2] or 0)) if match else (0.0, 0)


def after_colon(text: str) -> str:
    """Return the word after the colon: `ACTIVE` of `4: ACTIVE`, `LinkUp` of `5: LinkUp`."""
    return text.partition(":")[2].strip() or text


def label(device: Device, port: Port) -> str:
    """Return a port's name in sentences: the device, with the port's number if it has several."""
    return f"{device['name']}/{port['port']}" if len(device["ports"]) > 1 else str(device["name"])


def setting(table: Mapping[str, Any], name: str, device: Device, port: Port) -> Any:
    """Return the site's value for a port: by its label, port, device, board, model, or `default`; None without one."""
    keys = (name, f"{device['name']}/{port['port']}", device["name"], device["board"], device["type"], "default")
    return next((table[key] for key in keys if key and key in table), None)


def all_ports(found: Iterable[Device], ignore: Sequence[Any] = ()) -> Iterator[tuple[Device, Port]]:
    """Yield every port that concerns this node, without slices for guests and without ports that the site ignores.

    A site names a device (`mlx5_4`), a port (`mlx5_4/1`), an interface, or a board (`MT_0000000838`).
    """
    for device in found:
        if device["kind"] == "slice":
            continue
        for port in device["ports"]:
            own = {device["name"], f"{device['name']}/{port['port']}", port["netdev"], device["board"]} - {""}
            if own.isdisjoint(map(str, ignore)):
                yield device, port


def sisters(ports: Iterable[tuple[Device, Port]]) -> list[list[tuple[Device, Port]]]:
    """Return the ports in groups that should be alike: same model, board, link layer and number of the port."""
    groups: dict[tuple[Any, ...], list[tuple[Device, Port]]] = {}
    for device, port in ports:
        key = (device["type"], device["board"], device["kind"], port["layer"], port["port"])
        groups.setdefault(key, []).append((device, port))
    return list(groups.values())


def usual(values: Iterable[T]) -> tuple[T, int]:
    """Return the most frequent of some values, and its count; of equally frequent values the first."""
    times: dict[T, int] = {}
    for value in values:
        times[value] = times.get(value, 0) + 1
    return max(times.items(), key=lambda item: item[1])


def may_be_management(port: Port, sisters_: int) -> bool:
    """True for an Ethernet port without sisters: training has several alike, management and storage mostly have not."""
    return bool(port["layer"] == "Ethernet" and sisters_ < 2)


def is_active(port: Port) -> bool:
    """Return whether the port carries traffic."""
    return bool(port["state"] == "ACTIVE")
