"""Keeps the users whose claims wait, since another job of theirs has started in the seat of a job that had claimed."""

from __future__ import annotations

import msgspec

from slurm_robust.daemon.store.journal import Journal
from slurm_robust.slurm.client import Job

KEY = "seat_bars"
LASTS_S = 86400.0
MOST = 256
"""The most bars that are remembered, the newest ones."""


class Bar(msgspec.Struct):
    """The refusal of all claims of this user's jobs since `at_s`, and why."""

    user: str
    at_s: float
    why: str


class SeatBars:
    """Reads and writes them in the journal: they outlive the daemon, and end by themselves."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    def all(self, now_s: float) -> list[Bar]:
        """Return the bars in force, oldest first."""
        text = self.journal.get(KEY)
        found = msgspec.json.decode(text, type=list[Bar]) if text else []
        return [bar for bar in found if bar.at_s > now_s - LASTS_S]

    def why(self, user: str, now_s: float) -> str:
        """Return why this user's claims are refused; empty if they are accepted."""
        said = next((bar.why for bar in self.all(now_s) if bar.user == user), "")
        return f"{said}: claims wait for a day, or until an administrator ends that" if said else ""

    def bar(self, job: Job, seat_of: str, now_s: float) -> str:
        """Refuse from now on the claims of the user of this job, which has started in another job's seat.

        Returns:
            The sentence to tell; empty if the claims are refused already.
        """
        user, why = job.user, f"job {job.ref.address} of {job.user} started in the seat of job {seat_of}"
        if self.why(user, now_s):
            return ""
        self._write([*self.all(now_s), Bar(user, now_s, why)])
        return f"{why}: for a day no claim of {user}'s jobs is accepted; to end that: {admit_command(user)}"

    def lift(self, user: str, now_s: float) -> bool:
        """Accept this user's claims again; return False if they were accepted already."""
        there = self.all(now_s)
        self._write([bar for bar in there if bar.user != user])
        return any(bar.user == user for bar in there)

    def _write(self, bars: list[Bar]) -> None:
        self.journal.put(KEY, msgspec.json.encode(bars[-MOST:]).decode())


def admit_command(user: str) -> str:
    """Return the command by which an administrator ends it earlier."""
    return f"srobust breaker reset --user {user}"
