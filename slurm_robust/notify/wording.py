"""Writes a message: what happened, to which node or job, what was done, what to type.

Pure; plain text. The outlet escapes the text for each kind of target. Texts from outside are cut and made printable
here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from time import gmtime, strftime

import msgspec

from slurm_robust.core.text import printable, shortened
from slurm_robust.notify.alert import EVENTS, Alert, Letter, rank

MAX_LISTED = 20
SENTENCE_CHARS, FIELD_CHARS = 500, 200


def plain(text: str, limit: int) -> str:
    """Return the text as one line of characters that every terminal, chat and mail program shows unchanged."""
    # Characters that turn the direction of writing, and all others that are not seen, are not printable.
    return shortened(printable(text, " ").strip(), limit)


def clock(at_s: float) -> str:
    """Return a time as `2026-11-23 11:02:05 UTC`."""
    return strftime("%Y-%m-%d %H:%M:%S UTC", gmtime(at_s))


def lasted(seconds: float) -> str:
    """Return a duration as `40 min`, `3 h 10 min`."""
    minutes = int(seconds // 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def lasting(alert: Alert, times: int, lasted_s: float, now_s: float) -> Alert:
    """Return the alert that an event still goes on."""
    text = f"Still, {times} times, for {lasted(lasted_s)}: {alert.happened}"
    return msgspec.structs.replace(alert, at_s=now_s, happened=text)


def over(alert: Alert, untold: int, last_at_s: float) -> Alert:
    """Return the alert that an event has not come again for a while."""
    times = "once more" if untold == 1 else f"{untold} more times"
    text = f"It came {times}, last at {clock(last_at_s)}: {alert.happened}"
    return msgspec.structs.replace(alert, happened=text)


def finished(alerts: Sequence[Alert], now_s: float) -> Alert:
    """Return the alert that the obstacle to the daemon's work is over."""
    first = alerts[0]
    text = f"It is over: {'; and '.join(alert.happened for alert in alerts)}"
    return Alert(now_s, "over", f"over {first.key}", text, command="srobust status")


def letter(
    name: str, place: tuple[str, str], alerts: Sequence[Alert], beyond: Mapping[str, int], now_s: float
) -> Letter:
    """Return one message of these alerts, and of those `beyond` that were only counted; `place`: target and cluster."""
    target, cluster = place
    count = len(alerts) + sum(beyond.values())
    severities = [n.severity for n in alerts] + [EVENTS[event][0] for event in beyond]
    severity = max(severities, key=rank)
    lines: tuple[str, ...]
    if count == 1 and alerts:
        subject, lines = plain(alerts[0].happened, SENTENCE_CHARS), _one(alerts[0])
    else:
        subject, lines = _summary(alerts, beyond, count)
    where = f"/{plain(cluster, 64)}" if cluster else ""
    subject = f"[srobust{where}] {severity}: {subject}"
    return Letter(name, target, cluster, severity, now_s, subject, lines, count, tuple(_listed(alerts)))


def trial(target: str, cluster: str, now_s: float) -> Letter:
    """Return a message that only shows that messages arrive."""
    alert = Alert(now_s, "test", "test", "This is a test: messages for this target arrive", command="srobust status")
    return letter(f"{target}-test-{now_s:.0f}", (target, cluster), [alert], {}, now_s)


def _listed(alerts: Sequence[Alert]) -> list[Alert]:
    """Return the alerts that a summary names: the most severe, in the order in which they came."""
    severest = sorted(range(len(alerts)), key=lambda i: (-rank(alerts[i].severity), i))[:MAX_LISTED]
    return [alerts[i] for i in sorted(severest)]


def _one(alert: Alert) -> tuple[str, ...]:
    fields = (("node", alert.node), ("job", alert.job), ("done", alert.done), ("type", alert.command))
    lines = [f"{name}: {plain(value, FIELD_CHARS)}" for name, value in fields if value]
    return (*lines, f"at: {clock(alert.at_s)}")


def _summary(alerts: Sequence[Alert], beyond: Mapping[str, int], count: int) -> tuple[str, tuple[str, ...]]:
    by_event = Counter(beyond)
    by_event.update(alert.event for alert in alerts)
    since = f" since {clock(alerts[0].at_s)}" if alerts else ""
    subject = f"{count} messages{since}: " + ", ".join(
        f"{number} × {event}" for event, number in by_event.most_common()
    )
    lines = [f"- {clock(n.at_s)[11:19]} {n.severity}: {plain(n.happened, FIELD_CHARS)}" for n in _listed(alerts)]
    if more := count - len(lines):
        lines.append(f"- and {more} more")
    return subject, (*lines, "type: srobust status; srobust incidents")
