"""What every part of the daemon shares: configuration, journal, Slurm, what Slurm last showed, and the clock."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

from slurm_robust.config import Config
from slurm_robust.daemon.store.journal import Journal
from slurm_robust.model import Mode
from slurm_robust.policy.cluster.node_states import Cluster
from slurm_robust.slurm.client import Job, Node, Reservation, SlurmClient
from slurm_robust.slurm.errors import SlurmTimeoutError, SlurmUnavailableError

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger("srobustd")


def printable(text: str) -> str:
    """Text from outside, without anything that a terminal would take for a command."""
    return "".join(c if c.isprintable() else "?" for c in text)


@dataclass
class World:
    """What Slurm showed when it was last asked, and when that was (seconds since the epoch; 0 for never)."""

    nodes: Mapping[str, Node] = field(default_factory=dict)
    jobs: Mapping[int, Job] = field(default_factory=dict)
    reservations: Mapping[str, Reservation] = field(default_factory=dict)
    nodes_at_s: float = 0.0
    jobs_at_s: float = 0.0
    reservations_at_s: float = 0.0
    unchecked: frozenset[str] = frozenset()
    """Standby nodes whose full check is missing or too old."""
    at_check: frozenset[str] = frozenset()
    """Standby nodes that are being checked, or were just now."""

    @property
    def complete(self) -> bool:
        """True once everything was read."""
        return bool(self.nodes_at_s and self.jobs_at_s and self.reservations_at_s)

    def cluster(self) -> Cluster:
        """For the planner."""
        return Cluster(self.nodes, tuple(self.jobs.values()), tuple(self.reservations.values()), self.unchecked)


class Ration:
    """At most `count` of something in `window_s`, for each key, in bounded memory."""

    def __init__(self, count: int, window_s: float, keys: int = 1024) -> None:
        self.count, self.window_s, self.keys = count, window_s, keys
        self._used: OrderedDict[str, deque[float]] = OrderedDict()

    def take(self, key: str, now_s: float) -> bool:
        """True where one more is within the ration, which is then used."""
        used = self._used.setdefault(key, deque())
        self._used.move_to_end(key)
        while len(self._used) > self.keys:
            self._used.popitem(last=False)
        while used and used[0] <= now_s - self.window_s:
            used.popleft()
        if len(used) >= self.count:
            return False
        used.append(now_s)
        return True


class Core:
    """Shared by the daemon's parts. Everything runs in one loop; only Slurm calls leave it, for a thread."""

    def __init__(
        self,
        config: Config,
        client: SlurmClient,
        journal: Journal,
        *,
        account: str,
        mode: Mode,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.config, self.client, self.journal = config, client, journal
        self.account = account
        self.mode = mode
        self.now_s = clock
        self.world = World()
        self.cluster_name = config.cluster
        self.credential_pause_s = 0
        self.calls = 0
        self.troubles: dict[str, str] = {}
        """What keeps the daemon from its work now: a sentence each, with what to type, by what is in trouble."""
        self._jobs_took_s: deque[float] = deque(maxlen=5)
        self.away_at_s = float(journal.get("away_at_s", "0"))
        self._said = Ration(6, 60.0)
        self._said_in_all = Ration(120, 60.0)

    @property
    def acting(self) -> bool:
        """True where plans are carried out; False where they are only written down."""
        return self.mode is Mode.ACT

    @property
    def jobs_cost_s(self) -> float:
        """What a reading of all jobs takes: the quickest of the last few, since this machine has other work too."""
        return min(self._jobs_took_s, default=0.0)

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Ask Slurm in a thread; errors come through."""
        self.calls += 1
        try:
            return await asyncio.to_thread(function, *args, **kwargs)
        except (SlurmUnavailableError, SlurmTimeoutError):
            self._away()
            raise

    def _away(self) -> None:
        """Slurm was away: it may have forgotten what it agreed to. Also the next life of the daemon must know."""
        now_s = self.now_s()
        if now_s - self.away_at_s > 1.0:
            self.journal.put("away_at_s", repr(now_s))
            self.away_at_s = now_s

    async def read_nodes(self) -> None:
        """Look at all nodes."""
        found = await self.call(self.client.nodes)
        self.world.nodes, self.world.nodes_at_s = {n.name: n for n in found}, self.now_s()

    async def read_jobs(self) -> None:
        """Look at all jobs."""
        began_s = time.monotonic()
        found = await self.call(self.client.jobs)
        self._jobs_took_s.append(time.monotonic() - began_s)
        self.world.jobs, self.world.jobs_at_s = {j.ref.job_id: j for j in found}, self.now_s()

    async def read_reservations(self) -> None:
        """Look at all reservations."""
        found = await self.call(self.client.reservations)
        self.world.reservations, self.world.reservations_at_s = {r.name: r for r in found}, self.now_s()

    def say(self, level: int, what: str, text: str, *, key: str = "") -> None:
        """One line in the log, and the same in the journal's audit log.

        Args:
            level: As in `logging`.
            what: One word for machines, `claim.refused`.
            text: A sentence for people.
            key: Lines with the same key come at most six times a minute: texts from outside must not fill disks.
        """
        now_s = self.now_s()
        if key and not (self._said.take(f"{what} {key}", now_s) and self._said_in_all.take("all", now_s)):
            return
        plain = printable(text)[:1000]
        log.log(level, "%s: %s", what, plain)
        # On a full disk the log has it alone. Plans and actions are written otherwise, and not done where that fails.
        with contextlib.suppress(sqlite3.OperationalError):
            self.journal.event(now_s, logging.getLevelName(level).lower(), what, plain)

    def trouble(self, what: str, text: str) -> None:
        """Note what keeps the daemon from its work, for `srobust status`; an empty text: nothing any more."""
        if text:
            self.troubles[what] = text
        else:
            self.troubles.pop(what, None)

    def info(self, what: str, text: str, *, key: str = "") -> None:
        """An event worth a line."""
        self.say(logging.INFO, what, text, key=key)

    def alert(self, what: str, text: str, *, key: str = "") -> None:
        """Something that a person should look at."""
        self.say(logging.WARNING, what, text, key=key)

    def broken(self, error: Exception, about: str = "") -> None:
        """An error of our own: said with its traceback, and gone on from. `about` names the job, where it is one's."""
        words = printable(f"{about + ': ' if about else ''}{type(error).__name__}: {error}")[:1000]
        log.error("daemon.error: %s", words, exc_info=error)
        # It may be the journal that is broken, on a full disk: then nothing is done either, since plans come first.
        with contextlib.suppress(sqlite3.Error):
            self.journal.event(self.now_s(), "error", "daemon.error", words)
