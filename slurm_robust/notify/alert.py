"""Defines something that people want to be told, and the message that tells it. Values alone."""

from __future__ import annotations

from typing import Any

import msgspec

from slurm_robust.config.notify import SEVERITIES

OVER = "over"
EVENTS: dict[str, tuple[str, str]] = {
    "breaker": ("critical", "the breaker is open"),
    "storm": ("critical", "many nodes fail at once"),
    "daemon_error": ("critical", "the daemon cannot work, or has an error of its own"),
    "not_resumed": ("warning", "a training was not brought back"),
    "stop": ("warning", "a training ended, and is not started again"),
    "hang": ("warning", "a training hangs, and nothing is done about it"),
    "drain": ("warning", "a node was taken out of service"),
    "takeover": ("warning", "another daemon acts from now on"),
    "blind": ("warning", "nodes cannot check their GPUs"),
    "full": ("warning", "a file system that jobs need is full"),
    "lemon": ("info", "a node fails more often than others"),
    OVER: ("info", "what was told as `daemon_error`, `hang` or `not_resumed` is over"),
    "test": ("info", "`srobust notify test` was typed"),
}
"""Event → how severe it is, and what it means."""


def rank(severity: str) -> int:
    """Higher is more severe."""
    return SEVERITIES.index(severity)


class Alert(msgspec.Struct, frozen=True):
    """One thing that happened.

    Attributes:
        key: Alerts with the same key say the same: the second one is a repetition.
        happened: A sentence.
        done: What the daemon has done about it, a sentence.
        command: What a person may type.
    """

    at_s: float
    event: str
    key: str
    happened: str
    node: str = ""
    job: str = ""
    done: str = ""
    command: str = ""

    @property
    def severity(self) -> str:
        """Return the severity of the alert's event."""
        return EVENTS[self.event][0]


class Letter(msgspec.Struct, frozen=True):
    """One message as the outlet gets it.

    Attributes:
        id: The same for every try to deliver it.
        count: How many alerts it tells of.
        lines: Its text below the subject.
        alerts: The first of them, whole.
    """

    id: str
    target: str
    cluster: str
    severity: str
    at_s: float
    subject: str
    lines: tuple[str, ...]
    count: int = 1
    alerts: tuple[Alert, ...] = ()


class Delivery(msgspec.Struct, frozen=True):
    """What came of a try.

    Attributes:
        final: Another try of the same message would give the same.
        retry_after_s: What the other side asks for; 0 for nothing.
        message: What the other side said, or why it was not reached.
    """

    id: str
    target: str
    ok: bool
    message: str = ""
    final: bool = False
    retry_after_s: float = 0.0


class OutletSettings(msgspec.Struct, frozen=True):
    """The first line that the outlet reads: `notify:` of robust.yaml, and the cluster's name."""

    notify: dict[str, Any]
