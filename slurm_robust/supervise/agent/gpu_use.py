"""Finds the GPUs of this node that the job's ranks use, by their device files, `/dev/nvidiaN`.

A process's open files are certain, but a library may open all GPUs that it is allowed to open. Slurm's numbers
(`SLURM_STEP_GPUS`) count the records in gres.conf: in the order of device files, or with `AutoDetect` in the order of
the bus. If Slurm's numbers fit the open files, they narrow them down; until a rank has opened a file, they replace
them.
"""

from __future__ import annotations

import glob
import math
import os
import re
from typing import Iterable, Mapping, NamedTuple

from slurm_robust.marks.node_findings import NodeFinding
from slurm_robust.supervise.agent.clock import CLOCK, SystemClock
from slurm_robust.supervise.agent.gpu_minors import DRIVER, GpuMinors
from slurm_robust.supervise.agent.ranks import Rank, identity

DEVICES = "/dev/nvidia"
_OPEN_EVERY_S = 60.0
_CLOSED_EVERY_S = 30.0
_MAX_PROCESSES = 32
_KEPT_S = 120.0
"""The loss of a GPU may be reported this long after it has killed its rank: sources are polled."""
_MOST_GONE = 512


class _Use(NamedTuple):
    opened: frozenset[int] | None
    """Numbers of the open device files; None if they cannot be read."""
    given: tuple[int, ...] | None
    """Slurm's numbers; None if the environment has none."""
    read_s: float


class GpuUse:
    """The GPUs that the ranks of an attempt use.

    A rank that a lost GPU has killed is no longer there when the loss is reported. So the ranks of an attempt count
    until its end, and the ranks of the attempt before for another `_KEPT_S`.
    """

    def __init__(self, clock: SystemClock = CLOCK, *, devices: str = DEVICES, driver: str = DRIVER) -> None:
        self._clock = clock
        self._devices = devices
        self._device = re.compile(re.escape(devices) + r"(\d{1,4})\Z")
        self._driver = GpuMinors(driver)
        self._uses: dict[tuple[int, int], _Use] = {}
        self._found = False
        """A rank was found in this attempt."""
        self._gone: dict[tuple[int, int], tuple[_Use, float]] = {}
        """Ranks that have ended, and until when they count."""

    @property
    def minors(self) -> Mapping[str, int]:
        """PCI address → number of the device file; empty if it is not known. May wait for the driver, once."""
        return self._driver.facts.minors

    @property
    def driver(self) -> int:
        """Major version of NVIDIA's driver; 0 if it is not known. May wait for the driver, once."""
        return self._driver.facts.major

    @property
    def unused(self) -> bool:
        """Whether no rank was found here in this attempt, nor a moment ago."""
        return not self._found and not self._gone

    def new_attempt(self) -> None:
        """Note that the attempt of the ranks so far has ended."""
        until_s = self._clock.monotonic_s() + _KEPT_S
        ended = {**{key: use for key, (use, _) in self._gone.items()}, **self._uses}
        self._gone = {key: (use, min(until_s, self._gone.get(key, (use, until_s))[1])) for key, use in ended.items()}
        self._uses, self._found = {}, False

    def learn(self, ranks: Iterable[Rank], *, now: bool = False) -> None:
        """Look at these ranks if a look is due, or with `now` in any case."""
        self._driver.start()
        at_s = self._clock.monotonic_s()
        found: dict[tuple[int, int], _Use] = {}
        for rank in ranks:
            key = identity(rank.main)
            known = self._uses.get(key, _Use(frozenset(), rank.main.gpus, -math.inf))
            every_s = _OPEN_EVERY_S if known.opened else _CLOSED_EVERY_S
            if now or at_s - known.read_s >= every_s:
                opened = self._opened(rank)
                # The files of a rank that has just ended are closed.
                known = _Use(known.opened if opened == frozenset() else opened, known.given, at_s)
            # A young process may still exec with another environment.
            found[key] = known._replace(given=rank.main.gpus)
        ended = {
            # A process that opened no GPU may have been a shell above the ranks, with other numbers than the ranks'.
            key: (use, math.inf if use.opened else at_s + _KEPT_S)
            for key, use in self._uses.items()
            if key not in found
        }
        kept = {key: gone for key, gone in self._gone.items() if gone[1] > at_s and key not in found}
        self._gone = dict([*kept.items(), *ended.items()][-_MOST_GONE:])
        self._uses, self._found = found, self._found or bool(found)

    def concerns(self, finding: NodeFinding) -> bool | None:
        """Return whether a finding concerns these ranks; None if it will only be known once they have opened a GPU."""
        if not finding.about_gpus:
            return True
        gpus = frozenset(finding.gpus)
        said = [self._concerns_rank(use, gpus) for use in self._uses.values()]
        ended = [self._concerns_rank(use, gpus) for use, _ in self._gone.values()]
        # A rank that has ended without a GPU will not open one any more.
        open_questions = said or ended
        if True in said or True in ended:
            return True
        return None if None in open_questions or not open_questions else False

    def _concerns_rank(self, use: _Use, gpus: frozenset[int]) -> bool | None:
        meant = self._meant(use.given or ())
        if not use.opened:
            given = frozenset().union(*meant)
            return True if given and (not gpus or given & gpus) else None
        fitting = [some for some in meant if some and some <= use.opened]
        used = frozenset().union(*fitting) if fitting else use.opened
        return not gpus or bool(used & gpus)

    def _meant(self, given: tuple[int, ...]) -> list[frozenset[int]]:
        """Return the possible meanings of Slurm's numbers: device files, or places on the bus."""
        by_bus = tuple(self._driver.facts.minors.values()) if given else ()
        on_bus = [by_bus[number] for number in given if number < len(by_bus)]
        return [frozenset(given), frozenset(on_bus if len(on_bus) == len(given) else ())]

    def _opened(self, rank: Rank) -> frozenset[int] | None:
        """Return the open device files of the first of the rank's processes that has any open."""
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
