"""Decides what a target is told now. Pure: the time is an argument, and nothing is sent here.

A target gets one message at a time, in the order in which things happened. A repeated alert is sent once, then a
message that it still goes on. Alerts that had to wait (for the end of quiet hours, for the rate, for a target that did
not answer) are sent in one summary. Memory is bounded: further alerts are only counted, and the next message tells
their number.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from slurm_robust.config.notify import SEVERITIES
from slurm_robust.notify.alert import EVENTS, Alert, Delivery, Letter, rank
from slurm_robust.notify.wording import finished, lasting, letter, over

HOUR_S, DAY_S = 3600.0, 86400.0
GATHER_S = 60.0
"""The waiting time beyond which alerts are sent together in one message."""
FORGET_S = HOUR_S
"""The time without a repetition after which an alert counts as new."""
LASTS_S = {"hang": 7 * DAY_S, "not_resumed": 7 * DAY_S}
"""Event → how long it may last. Such an event is told once, and its end is told, too."""
ONCE = ("stop",)
"""Events of which a repetition is not told: a script may start one run after the other."""
STILL_S, STILL_MAX_S = 1800.0, 6 * HOUR_S
"""When it is first said that something still goes on; then after twice the time each, up to the longest time."""
RETRY_S, RETRY_MAX_S, RETRY_AFTER_MAX_S = 10.0, 1800.0, 6 * HOUR_S
MAX_WAITING, MAX_KEYS = 200, 500
RESERVED_PART = 5
"""One in so many messages of an hour is kept for critical alerts."""


class Rules(msgspec.Struct, frozen=True):
    """The rules by which a target is told something.

    Attributes:
        quiet_severity: The lowest severity that is told in quiet hours; empty: none is.
    """

    target: str
    cluster: str = ""
    events: frozenset[str] = frozenset(EVENTS)
    min_severity: str = "info"
    quiet_severity: str = "critical"
    per_hour: int = 10

    def wants(self, alert: Alert) -> bool:
        """Return whether the target is told of this at all."""
        return alert.event in self.events and rank(alert.severity) >= rank(self.min_severity)

    def wakes(self, alert: Alert) -> bool:
        """Return whether the target is told of this in its quiet hours."""
        return bool(self.quiet_severity) and rank(alert.severity) >= rank(self.quiet_severity)


class Repetition(msgspec.Struct):
    """Something that was told: how often it came since, and when that was told."""

    alert: Alert
    first_at_s: float
    last_at_s: float
    told_at_s: float
    times: int = 1
    untold: int = 0
    next_after_s: float = STILL_S


class Flight(msgspec.Struct):
    """The message that is being delivered."""

    letter: Letter
    covers: dict[str, int]
    began_at_s: float
    next_try_at_s: float
    tries: int = 0


class TargetState(msgspec.Struct):
    """The memory of one target, which the daemon keeps in its journal.

    Attributes:
        waiting: The alerts that the target is still to be told, oldest first.
        uncounted: By event, the number of alerts that the target will only be told as a number.
    """

    waiting: list[Alert] = []
    uncounted: dict[str, int] = {}
    repetitions: dict[str, Repetition] = {}
    sent_at_s: list[float] = []
    flight: Flight | None = None
    number: int = 0
    sent: int = 0
    failed: int = 0
    given_up: int = 0
    failing_since_s: float = 0.0
    error: str = ""

    @property
    def due(self) -> int:
        """The number of alerts that the target has not been told."""
        flight = sum(self.flight.covers.values()) if self.flight else 0
        return len(self.waiting) + sum(self.uncounted.values()) + flight


def arrived(state: TargetState, alert: Alert, rules: Rules) -> None:
    """Something happened: it is queued, or counted as a repetition."""
    if not rules.wants(alert):
        return
    known = state.repetitions.get(alert.key)
    if known is not None and alert.at_s - known.last_at_s < FORGET_S:
        known.alert, known.last_at_s = alert, max(known.last_at_s, alert.at_s)
        if alert.event in ONCE:
            return
        known.times += 1
        known.untold += 1
        return
    if known is not None:
        _end(state, known)
    elif len(state.repetitions) >= MAX_KEYS:
        _end(state, min(state.repetitions.values(), key=lambda r: r.last_at_s))
    at_s = alert.at_s
    state.repetitions[alert.key] = Repetition(alert, first_at_s=at_s, last_at_s=at_s, told_at_s=at_s)
    _queue(state, alert)


def remind(state: TargetState, now_s: float) -> None:
    """Say that something still goes on, or that it has not come again."""
    for known in list(state.repetitions.values()):
        if now_s - known.last_at_s >= LASTS_S.get(known.alert.event, FORGET_S):
            _end(state, known)
        elif now_s - known.last_at_s >= FORGET_S:
            _tell_untold(state, known)
        elif known.untold and now_s - known.told_at_s >= known.next_after_s and now_s - known.last_at_s < STILL_S:
            _queue(state, lasting(known.alert, known.times, known.last_at_s - known.first_at_s, now_s))
            known.untold, known.told_at_s = 0, now_s
            known.next_after_s = min(STILL_MAX_S, 2 * known.next_after_s)


def ended(state: TargetState, keys: Sequence[str], now_s: float) -> None:
    """Say once that the alerts told under these keys are over; alerts that were not told are not mentioned."""
    known = [state.repetitions.pop(key).alert for key in keys if key in state.repetitions]
    if known:
        _queue(state, finished(known, now_s))


def over_by(state: TargetState, alert: Alert) -> None:
    """Queue this alert, which says that the alert told under its key is over; do nothing if no such alert was told."""
    if state.repetitions.pop(alert.key, None) is not None:
        _queue(state, alert)


def next_letter(state: TargetState, rules: Rules, now_s: float, *, quiet: bool = False) -> Letter | None:
    """Return the message that is to be delivered now: another try, or a new one; None if nothing is due."""
    if state.flight is not None:
        return state.flight.letter if now_s >= state.flight.next_try_at_s else None
    state.sent_at_s = [at_s for at_s in state.sent_at_s if at_s > now_s - HOUR_S]
    sent = len(state.sent_at_s)
    # Nobody can use up the rate so that a breaker's alert has to wait.
    ordinary = rules.per_hour - rules.per_hour // RESERVED_PART
    singly = max(1, ordinary // 2)
    # What comes then is told together, a few times within the hour: a hang must not wait for its end.
    due = sent < singly or (sent < ordinary and now_s - state.sent_at_s[-1] >= HOUR_S / (ordinary - singly))
    chosen = [n for n in state.waiting if not quiet or rules.wakes(n)]
    if not due:
        chosen = [n for n in chosen if n.severity == SEVERITIES[-1]]
    if sent >= rules.per_hour or not (chosen or (state.uncounted and not quiet and due)):
        return None
    together = bool(state.uncounted) or sent + 1 >= singly or now_s - chosen[0].at_s > GATHER_S
    chosen = chosen if together else chosen[:1]
    taken = {id(n) for n in chosen}
    state.waiting = [n for n in state.waiting if id(n) not in taken]
    beyond, state.uncounted = (state.uncounted, {}) if due else ({}, state.uncounted)
    covers = dict(beyond)
    for alert in chosen:
        covers[alert.event] = covers.get(alert.event, 0) + 1
    state.number += 1
    made = letter(f"{rules.target}-{state.number}", (rules.target, rules.cluster), chosen, beyond, now_s)
    state.flight = Flight(made, covers, now_s, now_s)
    return made


def answered(state: TargetState, delivery: Delivery, now_s: float) -> float | None:
    """Note the result of a try. Return the seconds after which the message is tried again; None if it is not."""
    flight = state.flight
    if flight is None or flight.letter.id != delivery.id:
        return None
    if delivery.ok:
        state.flight, state.failing_since_s, state.error = None, 0.0, ""
        state.sent += 1
        state.sent_at_s.append(now_s)
        return None
    flight.tries += 1
    state.failed += 1
    state.failing_since_s, state.error = state.failing_since_s or now_s, delivery.message
    if delivery.final or now_s - flight.began_at_s >= DAY_S:
        state.flight = None
        state.given_up += 1
        if delivery.final:
            # The target takes messages, but not this one. It counts for the rate: the next may be refused, too.
            state.sent_at_s.append(now_s)
            return None
        for event, number in flight.covers.items():
            state.uncounted[event] = state.uncounted.get(event, 0) + number
        return None
    wait_s = max(
        min(RETRY_MAX_S, RETRY_S * 2.0 ** min(flight.tries - 1, 20)), min(delivery.retry_after_s, RETRY_AFTER_MAX_S)
    )
    flight.next_try_at_s = now_s + wait_s
    return wait_s


def clock_set_back(state: TargetState, now_s: float) -> None:
    """Move remembered times that lie in the future to now, after the clock was set back."""
    state.sent_at_s = [min(at_s, now_s) for at_s in state.sent_at_s]
    state.waiting = [msgspec.structs.replace(n, at_s=min(n.at_s, now_s)) for n in state.waiting]
    for known in state.repetitions.values():
        known.first_at_s, known.last_at_s = min(known.first_at_s, now_s), min(known.last_at_s, now_s)
        known.told_at_s = min(known.told_at_s, now_s)
    if state.flight is not None:
        state.flight.began_at_s = min(state.flight.began_at_s, now_s)
        state.flight.next_try_at_s = min(state.flight.next_try_at_s, now_s)


def _queue(state: TargetState, alert: Alert) -> None:
    state.waiting.append(alert)
    if len(state.waiting) > MAX_WAITING:
        # The newest of the least severe is only counted.
        least = min(range(len(state.waiting)), key=lambda i: (rank(state.waiting[i].severity), -i))
        event = state.waiting.pop(least).event
        state.uncounted[event] = state.uncounted.get(event, 0) + 1


def _end(state: TargetState, known: Repetition) -> None:
    del state.repetitions[known.alert.key]
    _tell_untold(state, known)


def _tell_untold(state: TargetState, known: Repetition) -> None:
    if known.untold:
        _queue(state, over(known.alert, known.untold, known.last_at_s))
        known.untold = 0
