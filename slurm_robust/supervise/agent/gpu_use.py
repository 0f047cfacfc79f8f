"""Which GPUs of this node do the job's ranks use? By their device files, `/dev/nvidiaN`.

A process's open files are certain, but a library may open all GPUs that it is allowed to. Slurm's numbers
(`SLURM_STEP_GPUS`) are those of the records in gres.conf: in the order of device files, or with `AutoDetect` in
that of the bus. They narrow the open files down where they fit them, and stand in for them until a rank has opened any.
"""

from __future__ import annotations

import glob
import math
import os
import re
from typing import Iterable, Mapping, NamedTuple

from slurm_robust.node_findings import NodeFinding
from slurm_robust.supervise.agent.clock import CLOCK, SystemClock
from slurm_robust.supervise.agent.ranks import Rank, identity

DRIVER = "/proc/driver/nvidia/gpus"
DEVICES = "/dev/nvidia"
_OPEN_EVERY_S = 60.0
_CLOSED_EVERY_S = 30.0
_MAX_PROCESSES = 32
_MINOR = re.compile(r"^Device Minor:\s*(\d{1,4})\s*$", re.MULTILINE)
_MAJOR = re.compile(r"^NVRM version: .{1,80}?\s(\d{3,4})\.\d", re.MULTILINE)
_ADDRESS = re.compile(r"\b[0-9a-f]{0,4}([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2})\b", re.IGNORECASE)


class _Use(NamedTuple):
    opened: frozenset[int] | None
    """Numbers of the device files that are open; None where that cannot be read."""
    given: tuple[int, ...] | None
    """Slurm's numbers; None where the environment has none."""
    read_s: float


class GpuUse:
    """The GPUs of the ranks that were found last.

    A rank that a lost GPU has killed is no longer there when that is reported: so the last ranks count.

    Attributes:
        minors: PCI address (`gpu_address`) → number of the device file; empty where the driver does not name them all.
        driver: Major number of NVIDIA's driver; 0 where it is not known.
    """

    def __init__(self, clock: SystemClock = CLOCK, *, devices: str = DEVICES, driver: str = DRIVER) -> None:
        self._clock = clock
        self._devices = devices
        self._device = re.compile(re.escape(devices) + r"(\d{1,4})\Z")
        self.minors: Mapping[str, int] = _minors_by_bus(driver)
        version = _MAJOR.search(_text(os.path.join(os.path.dirname(driver), "version")))
        self.driver = int(version[1]) if version else 0
        self._by_bus = tuple(self.minors.values())
        self._uses: dict[tuple[int, int], _Use] = {}

    @property
    def unused(self) -> bool:
        """Whether no rank was ever found here."""
        return not self._uses

    def learn(self, ranks: Iterable[Rank], *, now: bool = False) -> None:
        """Look at these ranks, where that is due, or `now`."""
        at_s = self._clock.monotonic_s()
        found: dict[tuple[int, int], _Use] = {}
        for rank in ranks:
            key = identity(rank.main)
            known = self._uses.get(key, _Use(frozenset(), rank.main.gpus, -math.inf))
            every_s = _OPEN_EVERY_S if known.opened else _CLOSED_EVERY_S
            if now or at_s - known.read_s >= every_s:
                opened = self._opened(rank)
                # The files of one that has just ended are closed.
                known = _Use(known.opened if opened == frozenset() else opened, known.given, at_s)
            # A young process may still exec with another environment.
            found[key] = known._replace(given=rank.main.gpus)
        self._uses = found or self._uses

    def concerns(self, finding: NodeFinding) -> bool | None:
        """Whether a finding concerns these ranks; None where that will be known once they have opened a GPU."""
        if not finding.about_gpus:
            return True
        said = [self._concerns_rank(use, frozenset(finding.gpus)) for use in self._uses.values()]
        return True if True in said else None if None in said or not said else False

    def _concerns_rank(self, use: _Use, gpus: frozenset[int]) -> bool | None:
        meant = self._meant(use.given or ())
        if use.opened is None and use.given is None:
            return True
        if not use.opened:
            given = frozenset().union(*meant)
            return True if given and (not gpus or given & gpus) else None
        fitting = [some for some in meant if some and some <= use.opened]
        used = frozenset().union(*fitting) if fitting else use.opened
        return not gpus or bool(used & gpus)

    def _meant(self, given: tuple[int, ...]) -> list[frozenset[int]]:
        """What Slurm's numbers may mean: device files, or places on the bus."""
        on_bus = [self._by_bus[number] for number in given if number < len(self._by_bus)]
        return [frozenset(given), frozenset(on_bus if len(on_bus) == len(given) else ())]

    def _opened(self, rank: Rank) -> frozenset[int] | None:
        """The device files that the first of a rank's processes has open which has any."""
        if not glob.glob(glob.escape(self._devices) + "[0-9]*"):
            return frozenset()
        for process in (rank.main, *rank.tree[:_MAX_PROCESSES]):
            folder = f"/proc/{process.pid}/fd"
            try:
                names = os.listdir(folder)
            except FileNotFoundError:
                continue
            except OSError:
                return None
            found = {int(match[1]) for name in names for match in [self._device.match(_target(folder, name))] if match}
            if found:
                return frozenset(found)
        return frozenset()


def _target(folder: str, name: str) -> str:
    try:
        return os.readlink(os.path.join(folder, name))
    except OSError:
        return ""


def gpu_address(text: str) -> str:
    """The first PCI address in a text, as the kernel writes it without the function: `0000:9b:00`; empty for none."""
    match = _ADDRESS.search(text)
    return match[1].lower() if match else ""


def _minors_by_bus(folder: str) -> dict[str, int]:
    """Address → number of the device file, in the order of the bus; empty where the driver does not name them all."""
    found: dict[str, int] = {}
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return {}
    for name in names:
        match = _MINOR.search(_text(os.path.join(folder, name, "information")))
        if match is None:
            return {}
        found[gpu_address(name) or name] = int(match[1])
    return found


def _text(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read(8192)
    except OSError:
        return ""
