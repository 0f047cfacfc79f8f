"""Trees of /sys and /proc for the network checks, and looks at them one after another."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from slurm_robust.nodecheck.engine import counters, registry, runner
from slurm_robust.nodecheck.engine.context import Context
from slurm_robust.nodecheck.engine.finding import Finding

REAL = Path(__file__).resolve().parents[5] / "shared" / "data" / "infiniband" / "sys-class-infiniband-h100.0"
UP = {"link_layer": "InfiniBand", "state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)"}
UP |= {"lid": "0x1f", "sm_lid": "0x1"}
ROCE = UP | {"link_layer": "Ethernet", "lid": "0x0", "sm_lid": "0x0"}
DOWN = {"state": "1: DOWN", "phys_state": "2: Polling", "rate": "10 Gb/sec (4X SDR)"}
OFF = {"state": "1: DOWN", "phys_state": "3: Disabled", "rate": "10 Gb/sec (4X SDR)"}
BOOT = "/proc/sys/kernel/random/boot_id"


def write(root: Path, files: dict[str, str]) -> None:
    """Small files below `root`."""
    for name, text in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def device(
    root: Path, name: str, port: dict[str, str], *, pci: str = "", ids: tuple[str, str] = ("", ""), **files: str
) -> Path:
    """An RDMA device with one port, behind a PCI function where `pci` is said; `files` stand in the device's folder."""
    folder = root / "sys/class/infiniband" / name
    own = {"hca_type": "MT4129", "board_id": "MT_0000000838", "fw_ver": "28.41.1000", "node_type": "1: CA"} | files
    write(folder, {key: f"{text}\n" for key, text in own.items()})
    write(folder / "ports/1", {key: f"{text}\n" for key, text in port.items()})
    if pci:
        bus = root / "sys/bus/pci/devices" / pci
        bus.mkdir(parents=True, exist_ok=True)
        if ids[0]:
            write(bus, {"vendor": ids[0], "device": ids[1]})
        if not (folder / "device").is_symlink():
            (folder / "device").symlink_to(f"../../../bus/pci/devices/{pci}")
    return folder


def eight(root: Path, port: dict[str, str] = UP) -> None:
    """A node with eight alike cards, mlx5_0 to mlx5_7."""
    for number in range(8):
        device(root, f"mlx5_{number}", port, pci=f"0000:{number:02x}:00.0")


def interface(root: Path, name: str, **files: str) -> Path:
    """A network interface that is up, with a card behind it."""
    folder = root / "sys/class/net" / name
    own = {"flags": "0x1003", "operstate": "up", "carrier": "1", "speed": "100000", "duplex": "full", "mtu": "1500"}
    write(folder, {key: f"{text}\n" for key, text in (own | files).items()})
    (folder / "device").mkdir(exist_ok=True)
    return folder


class Looker:
    """Looks at a tree again and again, with memory, at times of its own."""

    def __init__(self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        self.check = registry.get(name)
        self.root = tmp_path / "root"
        self.cache = tmp_path / "cache"
        self.options = options
        self.at_s = 1000.0
        write(self.root, {BOOT: "boot-1\n"})
        monkeypatch.setattr(counters, "uptime_s", lambda: self.at_s)

    def finding(self, after_s: float = 300.0, **options: Any) -> Finding:
        """What the next look finds."""
        self.at_s += after_s
        context = Context("n1", "periodic", self.root, self.root / "kmsg", self.cache)
        report = runner.run([self.check], context, {self.check.name: self.options | options}, 20.0)
        said = report.results[0].finding
        assert said.remedy or said.status.value not in ("fail", "warn", "unknown"), said
        return said

    def look(self, after_s: float = 300.0, **options: Any) -> tuple[str, str]:
        """Status and reason of the next look."""
        said = self.finding(after_s, **options)
        return said.status.value, said.reason

    def reboot(self) -> None:
        """A new boot: another id, and time starts anew."""
        write(self.root, {BOOT: f"boot-{random.random()}\n"})
        self.at_s = 600.0


def garble(root: Path, random_: random.Random, share: float = 0.3) -> None:
    """Truncate, overwrite or delete some of the files below `root`."""
    for path in sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink()):
        if random_.random() > share:
            continue
        old = path.read_bytes()
        how = random_.randrange(6)
        if how == 0:
            path.unlink()
        elif how == 1:
            path.write_bytes(old[: random_.randrange(len(old) + 1)])
        elif how == 2:
            path.write_bytes(random_.randbytes(random_.randrange(64)))
        elif how == 3:
            path.write_bytes(b"\xff\xfe" + old + b"\0" * 3)
        elif how == 4:
            path.write_bytes(old * 40)
        else:
            path.write_bytes(random_.choice([b"-1\n", b"9" * 40, b"0x\n", b"N/A (no PMA)\n", b"1e9", b"\n"]))


def no_crash(names: Iterable[str], root: Path, cache: Path | None) -> None:
    """Each check comes to a finding over this tree: no exception in a probe, a judge or what is remembered."""
    for name in names:
        one = registry.get(name)
        context = Context("n1", "full", root, root / "kmsg", cache)
        facts = one.probe(context, one.settings({}))
        said = one.judge(facts, one.settings({}))
        assert said.sentence, name
        if one.remember is not None:
            one.remember(facts, one.settings({}))
