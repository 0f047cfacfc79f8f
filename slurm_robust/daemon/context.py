"""Holds what all parts of the daemon share: configuration, journal, Slurm client, the last readings, and the clock."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

from slurm_robust.config.site import Config
from slurm_robust.core.model import Mode
from slurm_robust.core.text import printable
from slurm_robust.daemon.rate_limit import RateLimit
from slurm_robust.daemon.store.journal import Journal
from slurm_robust.policy.cluster.node_picture import NodePicture, difference, updated, whole
from slurm_robust.policy.cluster.node_states import Cluster, is_there
from slurm_robust.slurm.client import Job, Node, Reservation, SlurmClient
from slurm_robust.slurm.errors import (
    SlurmError,
    SlurmMissingError,
    SlurmNotFoundError,
    SlurmParseError,
    SlurmTimeoutError,
    SlurmUnavailableError,
)

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger("srobustd")
DAY_S = 86400.0
WHOLE_AFTER_S = 60.0
"""The time between two readings of all fields of every node; in between, only changes are read."""
CLOCKS_DIFFER_S = 5.0
MAX_NAMED = 64
"""The most nodes that are read by name: beyond that, one whole reading costs less."""
MAX_UNREAD_TOLD = 5
"""The most newly unreadable records that the log names for a reading, twice a minute at most."""


@dataclass
class SlurmReadings:
    """The last readings of Slurm, with their times (seconds since the epoch; 0 for never)."""

    picture: NodePicture = field(default_factory=NodePicture)
    """The nodes; another object only after a change of a node."""
    jobs: Mapping[int, Job] = field(default_factory=dict)
    """The jobs; another mapping only after a change of a job."""
    reservations: Mapping[str, Reservation] = field(default_factory=dict)
    """The reservations; another mapping only after a change of a reservation."""
    nodes_at_s: float = 0.0
    whole_at_s: float = 0.0
    """When all fields of every node were last read."""
    jobs_at_s: float = 0.0
    reservations_at_s: float = 0.0
    unchecked: frozenset[str] = frozenset()
    """Standby nodes whose full check is missing or too old."""
    at_check: frozenset[str] = frozenset()
    """Standby nodes that are being checked, or were until a few seconds ago."""
    _busy: tuple[Mapping[int, Job] | None, frozenset[str], frozenset[str]] = (None, frozenset(), frozenset())
    """The jobs, the nodes on which they are, and of these the nodes with more than one job."""
    _in: tuple[Mapping[int, Job] | None, dict[str, list[Job]]] = (None, {})
    _of: tuple[Mapping[int, Job] | None, dict[str, list[Job]]] = (None, {})
    """The jobs; the jobs that wait or are on nodes, by reservation; and the jobs on nodes, by user."""

    @property
    def nodes(self) -> Mapping[str, Node]:
        """All nodes, by name; another mapping only after a change of a node."""
        return self.picture.nodes

    @property
    def busy(self) -> frozenset[str]:
        """Nodes on which a job starts, runs, is suspended or ends."""
        return self._occupied()[0]

    def busy_without(self, job_id: int) -> frozenset[str]:
        """Return `busy` without a job's own nodes (raw id), unless other jobs are there, too."""
        busy, shared = self._occupied()
        job = self.jobs.get(job_id)
        return busy.difference(set(job.nodes) - shared) if job is not None and is_there(job) else busy

    def jobs_in(self, reservation: str) -> list[Job]:
        """Return jobs that wait or are on nodes with this reservation, including jobs that name several."""
        if self._in[0] is not self.jobs:
            found: dict[str, list[Job]] = {}
            for job in self.jobs.values():
                if job.reservation and (job.state == "PENDING" or is_there(job)):
                    for name in {*job.reservation.split(",")}:
                        found.setdefault(name, []).append(job)
            self._in = (self.jobs, found)
        return self._in[1].get(reservation, [])

    def there_of(self, user: str) -> list[Job]:
        """Return the user's jobs that start, run, are suspended or end."""
        if self._of[0] is not self.jobs:
            found: dict[str, list[Job]] = {}
            for job in self.jobs.values():
                if is_there(job):
                    found.setdefault(job.user, []).append(job)
            self._of = (self.jobs, found)
        return self._of[1].get(user, [])

    def _occupied(self) -> tuple[frozenset[str], frozenset[str]]:
        jobs, busy, shared = self._busy
        if jobs is not self.jobs:
            counts = Counter(n for job in self.jobs.values() for n in set(job.nodes) if is_there(job))
            busy, shared = frozenset(counts), frozenset(n for n, count in counts.items() if count > 1)
            self._busy = (self.jobs, busy, shared)
        return busy, shared

    @property
    def complete(self) -> bool:
        """True once everything was read."""
        return bool(self.nodes_at_s and self.jobs_at_s and self.reservations_at_s)

    def expire(self) -> None:
        """Make everything due to be read again."""
        self.nodes_at_s = self.jobs_at_s = self.reservations_at_s = self.whole_at_s = 0.0

    def cluster(self) -> Cluster:
        """Return these readings as the value from which policy plans."""
        return Cluster(self.nodes, tuple(self.jobs.values()), tuple(self.reservations.values()), self.unchecked)


class DaemonContext:
    """Shared by the daemon's parts. Everything runs in one event loop; only calls to Slurm run in a thread."""

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
        self._clock = clock
        self.clock_ahead_s = 0
        """How far this host's clock is ahead of slurmctld's; 0 if that is less than `CLOCKS_DIFFER_S`."""
        before, _, since = journal.get("mode").partition(" ")
        self.mode_since_s = float(since) if before == mode.value else clock()
        """Since when the daemon has been in this mode, over restarts (seconds since the epoch)."""
        if before != mode.value:
            with contextlib.suppress(sqlite3.OperationalError):  # a full disk keeps no daemon from its start
                journal.put("mode", f"{mode.value} {self.mode_since_s!r}")
        self.steady_s: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME)
        """The steady clock, which is never set and goes on while the machine sleeps."""
        self.readings = SlurmReadings()
        self.config_path = ""
        """The file that `--config` named, for children that read it; empty if they find it as the daemon did."""
        self.cluster_name = config.cluster
        self.credential_pause_s = 0
        self.min_job_age_s = 0.0
        """The time for which Slurm shows a job that has ended."""
        self.private = frozenset({"unknown"})
        """The data that slurm.conf's `PrivateData` hides from ordinary users; `unknown` before it was read."""
        self.calls = 0
        self.cause_of: Callable[[str], str] = lambda _: ""
        """Returns an addition to the reason of a node's drain: that other nodes of its leaf switch failed with it."""
        self.troubles: dict[str, str] = {}
        """The obstacles to the daemon's work now, by topic: a sentence each, with the command to type."""
        self._jobs_took_s: deque[float] = deque(maxlen=5)
        self._nodes_took_s: deque[float] = deque(maxlen=5)
        self.away_at_s = float(journal.get("away_at_s", "0"))
        """When slurmctld was last out of reach."""
        self._logged = RateLimit(6, 60.0)
        self._logged_in_all = RateLimit(120, 60.0)
        self._logged_of_user, self._left_out = RateLimit(20, 60.0), RateLimit(1, 60.0)
        self._own_errors, self._told_unread = RateLimit(1, 600.0), RateLimit(2, 60.0)
        self._unread: dict[str, frozenset[str]] = {}
        """The records that the last readings left out and that the log has named, as in `SlurmClient.unread`."""

    def now_s(self) -> float:
        """Return the time as slurmctld tells it, seconds since the epoch: most times to compare with are Slurm's."""
        return self._clock() - self.clock_ahead_s

    def compare_clocks(self, slurm_s: int | None, asked_s: float) -> None:
        """Take over slurmctld's time if the clocks differ, and say so.

        Args:
            slurm_s: slurmctld's time, in whole seconds; None if it tells none.
            asked_s: `now_s` when slurmctld was asked; the answer has just come.
        """
        if slurm_s is None:
            return
        # It read its clock at some moment in between, within that second.
        middle_s = self.clock_ahead_s + (asked_s + self.now_s()) / 2 - (slurm_s + 0.5)
        unsure_s = (self.now_s() - asked_s) / 2 + 0.5
        if abs(middle_s - self.clock_ahead_s) <= unsure_s:
            return
        ahead_s = round(middle_s) if abs(middle_s) >= CLOCKS_DIFFER_S else 0
        self.clock_ahead_s = self.client.clock_ahead_s = ahead_s
        how = f"{abs(ahead_s)} s {'ahead of' if ahead_s > 0 else 'behind'} slurmctld's"
        text = f"the clock of this host is {how}; the daemon goes by slurmctld's, its log does not"
        if ahead_s > 0:
            text += f", and jobs come back up to {min(ahead_s, 121)} s later"
        self.trouble("clock", f"{text}: timedatectl" if ahead_s else "")
        if ahead_s:
            self.alert("clock.differs", text)
        else:
            self.info("clock.right", "the clock of this host agrees with slurmctld's again")

    @property
    def acting(self) -> bool:
        """Whether plans are carried out; False if they are only written down."""
        return self.mode is Mode.ACT

    @property
    def picture(self) -> NodePicture:
        """All nodes, and the nodes that need attention; another object only after a change of a node."""
        return self.readings.picture

    @property
    def jobs_cost_s(self) -> float:
        """The time of a reading of all jobs: the fastest of the last few, since this machine has other work too."""
        return min(self._jobs_took_s, default=0.0)

    @property
    def nodes_cost_s(self) -> float:
        """The time of a reading of the nodes' changes: the fastest of the last few."""
        return min(self._nodes_took_s, default=0.0)

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call Slurm in a thread; errors are passed on."""
        self.calls += 1
        try:
            return await asyncio.to_thread(function, *args, **kwargs)
        except (SlurmUnavailableError, SlurmTimeoutError):
            self.readings.whole_at_s = 0.0
            self._note_away()
            raise

    async def pause(self, seconds: float) -> None:
        """Let others of the daemon's tasks go on meanwhile."""
        await asyncio.sleep(seconds)

    def _note_away(self) -> None:
        """Note that Slurm was away, and may have forgotten changes; the note outlasts a restart of the daemon."""
        now_s = self.now_s()
        if now_s - self.away_at_s > 1.0:
            self.journal.put("away_at_s", repr(now_s))
            self.away_at_s = now_s

    async def read_nodes(self, max_age_s: float = 0.0) -> None:
        """Read the nodes' changes, or all of every node if that is due; do nothing if the last reading is younger."""
        readings, now_s = self.readings, self.now_s()
        if 0 <= now_s - readings.nodes_at_s < max_age_s:
            return
        began_s = time.monotonic()
        if not readings.whole_at_s or now_s - readings.whole_at_s >= WHOLE_AFTER_S or not await self._read_changes():
            self._see(whole(await self.call(self.client.nodes)))
            self._tell_unread("nodes")
            readings.whole_at_s = self.now_s()
        else:
            self._nodes_took_s.append(time.monotonic() - began_s)
        readings.nodes_at_s = self.now_s()

    async def _read_changes(self) -> bool:
        """Read the cheap listing, and the nodes in question by name; False if only a whole reading helps."""
        try:
            listing = await self.call(self.client.node_listing)
        except (SlurmMissingError, SlurmParseError) as error:
            # The listing only saves time: no sinfo, or one that a site has wrapped, must not stop everything else.
            self.alert("nodes.listing", f"{error}; every node is read in full each time", key="listing")
            return False
        found = difference(self.readings.picture, listing)
        if len(found.in_question) > MAX_NAMED:
            return False
        try:
            named = await self.call(self.client.nodes_named, found.in_question) if found.in_question else []
        except SlurmNotFoundError:
            return False  # one of them has left the site since
        changed = {**found.changed, **{node.name: node for node in named}}
        self.readings.picture = updated(self.readings.picture, changed)
        return True

    def _see(self, picture: NodePicture) -> None:
        if picture.nodes != self.readings.picture.nodes:
            self.readings.picture = picture

    async def read_jobs(self) -> None:
        """Read all jobs."""
        began_s = time.monotonic()
        jobs = {j.ref.job_id: j for j in await self.call(self.client.jobs)}
        self._jobs_took_s.append(time.monotonic() - began_s)
        self._tell_unread("jobs")
        self.readings.jobs = jobs if jobs != self.readings.jobs else self.readings.jobs
        self.readings.jobs_at_s = self.now_s()

    async def read_reservations(self, max_age_s: float = 0.0) -> None:
        """Read all reservations; do nothing if the last reading is younger than `max_age_s`."""
        if 0 <= self.now_s() - self.readings.reservations_at_s < max_age_s:
            return
        found = {r.name: r for r in await self.call(self.client.reservations)}
        self._tell_unread("reservations")
        self.readings.reservations = found if found != self.readings.reservations else self.readings.reservations
        self.readings.reservations_at_s = self.now_s()

    def _tell_unread(self, what: str) -> None:
        """Tell a person of each record that the last reading left out: once in the log, and while it is so in status.

        Args:
            what: The call that read them: `nodes`, `jobs` or `reservations`.
        """
        unread = tuple(self.client.unread.get(what, ()))
        before = self._unread.get(what, frozenset())
        new = [line for line in unread if line not in before]
        # Any user may have made them, thousands at once: they must not use up the lines that others need.
        told = new if new and self._told_unread.take(what, self.now_s()) else []
        for line in told[:MAX_UNREAD_TOLD]:
            text = f"{line}: it is left alone, as if it were not there; the others are read"
            self.alert("slurm.unread", f"{text} ({len(told)} new ones)" if len(told) > 1 else text, key=line[:80])
        self._unread[what] = before.intersection(unread).union(told)
        shown = printable("; ".join(unread[:3]))[:200]
        text = f"{len(unread)} of Slurm's {what} cannot be read and are left alone ({shown}): journalctl -u srobustd"
        self.trouble(f"unread {what}", text if unread else "")

    def log(self, level: int, what: str, text: str, *, key: str = "", user: str = "") -> None:
        """Write one line to the log and to the journal's audit log.

        Args:
            level: The level, as in `logging`.
            what: The event as one word for machines, `claim.refused`.
            text: The event as a sentence for people.
            key: Lines with the same key are limited to six a minute: texts from outside must not fill disks.
            user: The user whose job caused the line: twenty lines a minute, so that no user crowds out other lines.
        """
        now_s = self.now_s()
        if key and not self._logged.take(f"{what} {key}", now_s):
            return
        if user and not self._logged_of_user.take(user, now_s):
            if not self._left_out.take(user, now_s):
                return
            text = f"more lines about jobs of {user} are left out for a minute"
        # The daemon's own actions are always logged.
        in_all = "of users" if user else "" if what.startswith("action.") else "all" if key else ""
        if in_all and not self._logged_in_all.take(in_all, now_s):
            return
        plain = printable(text)[:1000]
        log.log(level, "%s: %s", what, plain)
        # On a full disk only the log gets it. Plans and actions must be written, and are not carried out otherwise.
        with contextlib.suppress(sqlite3.OperationalError):
            self.journal.event(now_s, logging.getLevelName(level).lower(), what, plain)

    def trouble(self, what: str, text: str) -> None:
        """Note what keeps the daemon from its work, for `srobust status`; an empty text removes the note."""
        if text:
            self.troubles[what] = text
        else:
            self.troubles.pop(what, None)

    def info(self, what: str, text: str, *, key: str = "", user: str = "") -> None:
        """Log an ordinary event."""
        self.log(logging.INFO, what, text, key=key, user=user)

    def alert(self, what: str, text: str, *, key: str = "", user: str = "") -> None:
        """Log something that a person should check."""
        self.log(logging.WARNING, what, text, key=key, user=user)

    @contextlib.contextmanager
    def guarded(self, what: str, about: str, *, key: str) -> Iterator[None]:
        """Turn an error of Slurm about one job or node into an alert, so that it does not delay others."""
        try:
            yield
        except SlurmError as error:
            self.alert(what, f"{about}: {error}", key=key)

    @contextlib.contextmanager
    def aside(self, what: str) -> Iterator[None]:
        """Work that no recovery needs: an error of our own in it is told, and keeps nothing else from its turn.

        Args:
            what: The name of the work, for `srobust status` and the log, which has the error once in ten minutes.
        """
        try:
            yield
        except Exception as error:  # noqa: BLE001 (see above)
            said = printable(f"{type(error).__name__}: {error}")[:200]
            self.trouble(what, f"{what} fails ({said}), recoveries go on: journalctl -u srobustd")
            if self._own_errors.take(what, self.now_s()):
                self.own_error(error, what)
        else:
            self.trouble(what, "")

    def own_error(self, error: Exception, about: str = "") -> None:
        """Log an error of the daemon itself, with its traceback; `about` names the job that it concerns, if any."""
        text = printable(f"{about + ': ' if about else ''}{type(error).__name__}: {error}")[:1000]
        log.error("daemon.error: %s", text, exc_info=error)
        # The journal itself may fail, on a full disk for example.
        with contextlib.suppress(sqlite3.Error):
            self.journal.event(self.now_s(), "error", "daemon.error", text)
