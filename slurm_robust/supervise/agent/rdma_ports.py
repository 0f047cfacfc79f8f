"""Reads this node's RDMA ports in /sys, without any privilege: state, lost links, bytes moved.

Reading a port asks the card's firmware, which may hang. So a separate thread reads, and no second thread is started
while it hangs.
"""

from __future__ import annotations

import os
import threading
from typing import NamedTuple, Sequence

CLASS = "/sys/class/infiniband"
_MAX_DEVICES = 128
_MAX_PORTS = 2
"""A device with more ports is a switch of virtual functions: only its first port has a cable."""
_MAX_BYTES = 64
_WORD_BYTES = 4
"""The unit in which `port_xmit_data` and `port_rcv_data` count (kernel documentation, sysfs-class-infiniband)."""


class Port(NamedTuple):
    """The state of a port; None for values that cannot be read.

    Attributes:
        state: `ACTIVE`, `DOWN`, …
        lost: How many links were lost since the card started.
        moved_bytes: Bytes sent and received since then.
    """

    state: str | None
    lost: int | None
    moved_bytes: int | None


class PortReader:
    """Reads all ports except those that the site ignores, one reading at a time."""

    def __init__(self, root: str = CLASS, ignore: Sequence[str] = ()) -> None:
        self._root = root
        self._ignore = ignore
        self._thread: threading.Thread | None = None
        self._read: dict[str, Port] | None = None

    def start(self) -> bool:
        """Begin a reading; return False while another one is under way, or hangs."""
        if self._thread is not None and self._thread.is_alive():
            return False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return True

    def take(self) -> dict[str, Port] | None:
        """Return the ports that were read since the last call; None if there was no reading."""
        read, self._read = self._read, None
        return read

    def _run(self) -> None:
        try:
            self._read = read_ports(self._root, self._ignore)
        except OSError:
            self._read = None  # that the cards cannot be listed does not mean that they are gone


def read_ports(root: str = CLASS, ignore: Sequence[str] = ()) -> dict[str, Port]:
    """Return every port of this node's cards by its name, such as `mlx5_0/1`, without those of virtual functions.

    Args:
        root: The folder that has a folder for each card.
        ignore: Devices, ports, interfaces or boards, as in the option of the check `rdma_ports`.

    Raises:
        OSError: the cards, or the ports of one, cannot be listed.
    """
    found = {}
    for device in _names(root)[:_MAX_DEVICES]:
        folder = os.path.join(root, device)
        bus = os.path.join(folder, "device")
        if os.path.exists(os.path.join(bus, "physfn")) or _target(os.path.join(bus, "subsystem")) == "auxiliary":
            continue
        numbers = [name for name in _names(os.path.join(folder, "ports")) if name.isdigit()]
        for number in numbers if len(numbers) <= _MAX_PORTS else numbers[:1]:
            if not ignore or _own_names(folder, device, number).isdisjoint(ignore):
                found[f"{device}/{number}"] = _port(os.path.join(folder, "ports", number))
    return found


def _own_names(folder: str, device: str, number: str) -> set[str]:
    """Return the names by which a site may call a port."""
    netdev = _word(os.path.join(folder, "ports", number, "gid_attrs/ndevs/0"))
    netdevs = [netdev] if netdev else _names(os.path.join(folder, "device/net"))
    return {device, f"{device}/{number}", *netdevs, _word(os.path.join(folder, "board_id")) or ""}


def _port(folder: str) -> Port:
    counters = os.path.join(folder, "counters")
    sent, received = (_count(os.path.join(counters, name)) for name in ("port_xmit_data", "port_rcv_data"))
    moved = None if sent is None or received is None else (sent + received) * _WORD_BYTES
    state = (_word(os.path.join(folder, "state")) or "").partition(":")[2].strip()
    return Port(state or None, _count(os.path.join(counters, "link_downed")), moved)


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _target(link: str) -> str:
    try:
        return os.path.basename(os.readlink(link))
    except OSError:
        return ""


def _word(path: str) -> str | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(fd, _MAX_BYTES).decode("ascii", "replace").strip()
    except OSError:
        return None
    finally:
        os.close(fd)


def _count(path: str) -> int | None:
    text = _word(path) or ""
    return int(text) if text.isdigit() else None
