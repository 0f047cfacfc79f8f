"""Continues, once, a rank that a signal has stopped: a stop is not a fault of its node.

If it stops again, the stacks decide as for any other silence (`policy.job.consequences`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from slurm_robust.config.site import SuperviseConfig
from slurm_robust.supervise.agent.stopped_messages import ContinueRank, RankContinued
from slurm_robust.supervise.reported.fleet import Fleet, RankInfo
from slurm_robust.supervise.session import Session

_ASK_AGAIN_S = 5.0
_ASKED_AT_MOST = 3
"""How often the agent is asked: a request is lost if no agent of the node is there at that moment."""
_UNTRACED = " and nobody traces it"


@dataclass(frozen=True)
class StoppedRank:
    """The stopped main process of a rank.

    Attributes:
        stopped_s: For how many seconds it has been stopped.
        traced: Whether a debugger holds it.
    """

    rank: int
    node: str
    pid: int
    stopped_s: float
    traced: bool = False


def to_continue(
    stopped: Collection[StoppedRank], ranks: int, silent_s: float, limit_s: float, faulty: Collection[str]
) -> list[StoppedRank]:
    """Return which of the stopped ranks are to be continued.

    If more than half of the job's ranks are stopped, the result is empty: the job is suspended, by Slurm or by a
    person.

    Args:
        stopped: All stopped ranks.
        ranks: How many ranks of the job live.
        silent_s: For how long the job has made no progress.
        limit_s: `supervise.continue_stopped_after_s`.
        faulty: Nodes that have reported a fault.
    """
    if limit_s <= 0 or silent_s < limit_s or 2 * len(stopped) > ranks:
        return []
    return [one for one in stopped if not one.traced and one.stopped_s >= limit_s and one.node not in faulty]


def others_rest(seen_at_s: float, rest_s: float, now_s: float, settings: SuperviseConfig) -> bool:
    """Return whether recent captures have shown that the other ranks wait, for as long as a rank must be stopped.

    In a job that does not report progress, a silence does not show it: a rank may be stopped by design while others
    work.
    """
    fresh_s = 2 * settings.quiet_capture_interval_s
    return now_s - seen_at_s <= fresh_s and rest_s > 0 and rest_s >= settings.continue_stopped_after_s


class StoppedRanks:
    """Watches the stopped ranks of a job; each process is continued once."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._fleet = session.fleet
        self._last_sign_s = self._moved_at_s = 0.0
        """The last sign of progress, and when it was new, on our monotonic clock."""
        self._since_s: dict[tuple[int, int], float] = {}
        """Rank and process → since when the process is stopped."""
        self._asked: dict[tuple[int, int], tuple[int, float]] = {}
        """Rank and process → how often its agent was asked to continue the process, and when last."""
        self._answered: set[tuple[int, int]] = set()
        self._continued_at_s: dict[int, float] = {}

    def continued_since(self, at_s: float) -> list[int]:
        """Return the ranks that were continued after this time, seconds since the epoch."""
        return sorted(rank for rank, when_s in self._continued_at_s.items() if when_s >= at_s)

    def to_be_continued(self, fleet: Fleet) -> frozenset[int]:
        """Return the stopped ranks that are continued once they have held the job up for long; once, in act mode."""
        over = self._answered | {key for key, (times, _) in self._asked.items() if times >= _ASKED_AT_MOST}
        over = over if self._session.acting and fleet is self._fleet else set()
        stopped = [StoppedRank(r.rank, r.node, r.pid, math.inf, traced=r.state == "t") for r in fleet.stopped]
        limit_s = self._session.settings.continue_stopped_after_s
        faulty = {signal.node for signal in self._session.node_faults.of({one.node for one in stopped})}
        found = to_continue(stopped, len(fleet.alive), math.inf, limit_s, faulty)
        return frozenset(one.rank for one in found if (one.rank, one.pid) not in over)

    def awaits_an_answer(self) -> bool:
        """Return whether an agent was asked a moment ago, so that its rank may already run again."""
        asked = (when_s for key, (_, when_s) in self._asked.items() if key not in self._answered)
        return self._session.clock.monotonic_s() - max(asked, default=-math.inf) < _ASK_AGAIN_S

    def poll(self, fleet: Fleet, last_sign_s: float, *, waited_for: bool = True) -> bool:
        """Ask for the ranks that are to be continued; return True while a stop holds up, or has just ended.

        Args:
            fleet: The ranks of the current attempt.
            last_sign_s: The time of its last sign of progress.
            waited_for: The silence, or captures, show that the others wait; otherwise no rank is asked for.
        """
        now_s = self._session.clock.monotonic_s()
        if fleet is not self._fleet:
            self._fleet, self._moved_at_s = fleet, now_s
            for table in (self._since_s, self._asked, self._answered, self._continued_at_s):
                table.clear()
        if last_sign_s != self._last_sign_s:
            self._last_sign_s, self._moved_at_s = last_sign_s, now_s
        answers, fleet.continued = fleet.continued, []
        # Each answer is reported, so this is a list: any() alone would stop early and lose some.
        continued = [answer for answer in answers if self._tell(answer, now_s)]
        before = set(self._since_s)
        stopped = self._stopped(fleet.stopped, now_s)
        if self._session.srun_exit_code is None and waited_for:
            self._ask(stopped, len(fleet.alive), now_s)
        limit_s = self._session.settings.continue_stopped_after_s
        # Steps may come before the message that a rank goes on, whoever has continued it.
        holds_up = bool(stopped) and 0 < limit_s <= now_s - self._moved_at_s
        return bool(continued or holds_up or before - set(self._since_s))

    def _stopped(self, infos: Iterable[RankInfo], now_s: float) -> list[StoppedRank]:
        self._since_s = {(r.rank, r.pid): self._since_s.get((r.rank, r.pid), now_s) for r in infos}
        return [
            StoppedRank(r.rank, r.node, r.pid, now_s - self._since_s[r.rank, r.pid], traced=r.state == "t")
            for r in infos
        ]

    def _ask(self, stopped: Collection[StoppedRank], ranks: int, now_s: float) -> None:
        session = self._session
        if not stopped:
            return
        limit_s = session.settings.continue_stopped_after_s
        faulty = {signal.node for signal in session.node_faults.of({one.node for one in stopped})}
        for one in to_continue(stopped, ranks, now_s - self._moved_at_s, limit_s, faulty):
            key = one.rank, one.pid
            times, asked_at_s = self._asked.get(key, (0, 0.0))
            if key in self._answered or times >= _ASKED_AT_MOST or (times and now_s - asked_at_s < _ASK_AGAIN_S):
                continue
            self._asked[key] = times + 1, now_s
            if session.acting:
                session.agents.send(ContinueRank(one.node, one.rank, one.pid))
                continue
            self._answered.add(key)
            text = f"{_held(one.rank, one.node, one.stopped_s)}{_UNTRACED}: mode act would continue it (SIGCONT)"
            session.folder.log_event("note", text, node=one.node, rank=one.rank)

    def _tell(self, answer: RankContinued, now_s: float) -> bool:
        """Write an answer into the story; returns whether the rank was continued."""
        key = answer.rank, answer.pid
        if key not in self._asked or key in self._answered:
            return False
        self._answered.add(key)
        held = _held(answer.rank, answer.node, now_s - self._since_s.get(key, now_s))
        session, named = self._session, {"node": answer.node, "rank": answer.rank}
        if answer.refused:
            session.folder.log_event("note", f"{held}: it is not continued, {answer.refused}", **named)
            return False
        session.folder.log_event("continued", f"{held}{_UNTRACED}: it was continued (SIGCONT)", **named)
        self._continued_at_s[answer.rank] = session.clock.now_s()
        return True


def _held(rank: int, node: str, stopped_s: float) -> str:
    return f"rank {rank} on {node} was stopped by a signal for {stopped_s:.0f} s"
