"""A simulated Slurm, a journal, and daemons that are started and killed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from fake_slurm import FakeSlurm

from slurm_robust.config.site import Config, parse
from slurm_robust.core.model import Mode
from slurm_robust.daemon.actor import CrashPoint
from slurm_robust.daemon.context import DaemonContext
from slurm_robust.daemon.service import Daemon
from slurm_robust.daemon.store.journal import Journal
from slurm_robust.marks.claim import Claim, render
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.slurm.values import expand


class KilledError(BaseException):
    """kill -9."""


class Dies(CrashPoint):
    """Dies after so many more actions."""

    def __init__(self, actions: int) -> None:
        super().__init__("")
        self.left = actions

    def after(self, what: str) -> None:
        """Count, and die."""
        self.left -= 1
        if self.left == 0:
            raise KilledError


class World:
    """A simulated Slurm, a journal, and lives of the daemon."""

    def __init__(self, folder: Path, slurm: FakeSlurm, config: Config, mode: Mode = Mode.ACT) -> None:
        self.slurm, self.config, self.mode = slurm, config, mode
        self.journal = Journal.open(folder)
        self.daemon = self.live()

    def live(self) -> Daemon:
        """A new life of the daemon."""
        context = DaemonContext(
            self.config, self.slurm, self.journal, account="root", mode=self.mode, clock=lambda: self.slurm.now_s
        )
        self.daemon = Daemon(context)
        self.daemon.recoveries.load()
        return self.daemon

    async def look(self) -> None:
        """One look, with Slurm's errors taken as the loop takes them."""
        try:
            await self.daemon._poll()
        except SlurmError:
            return
        except KilledError:
            self.live()

    def run(self, seconds: float, step_s: float = 0.5) -> None:
        """Let time pass, with a look every step."""

        async def passing() -> None:
            for _ in range(round(seconds / step_s)):
                self.slurm.pass_s(step_s)
                await self.look()

        asyncio.run(passing())

    def claim(self, job_id: int, evict: tuple[str, ...], incident: str = "i1", **more: object) -> None:
        """The job asks."""
        job = self.slurm.state.jobs[job_id]
        said = Claim("wants", f"line-{job_id}", restart=job.restart_count, incident=incident, evict=evict, why="hang")
        self.slurm.state.jobs[job_id] = replace(job, comment=render(replace(said, **more)))  # type: ignore[arg-type]

    def outcomes(self) -> list[str]:
        """What the incidents came to, oldest first."""
        return [row.outcome for row in reversed(self.journal.incidents())]


Kind = TypeVar("Kind", bound=World)


@contextlib.contextmanager
def worlds(folder: Path, kind: type[Kind]) -> Iterator[Callable[[str, int], Kind]]:
    """Makes worlds, each of a configuration and a number of nodes, that have read everything once; closes them."""
    made: list[Kind] = []

    def make(text: str, nodes: int) -> Kind:
        world = kind(folder / str(len(made)), FakeSlurm(nodes), parse(text))
        made.append(world)
        world.run(6)
        return world

    yield make
    for world in made:
        world.journal.close()


def held(world: World) -> set[str]:
    """Nodes that a quarantine keeps from other jobs."""
    kept = [r.nodes for r in world.slurm.state.reservations.values() if "quarantine" in r.name]
    return {name for nodes in kept for name in expand(nodes)}
