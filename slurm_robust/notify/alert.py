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
    "bad_loss": ("warning", "a training goes on with a loss that is not finite, and nothing is done about it"),
    "drain": ("warning", "a node was taken out of service"),
    "takeover": ("warning", "another daemon acts from now on"),
    "blind": ("warning", "nodes cannot check their GPUs"),
    "full": ("warning", "a file system that jobs need is full"),
    "lemon": ("info", "a node fails more often than others"),
    OVER: ("info", "what was told as `daemon_error`, `hang` or `not_resumed` is over"),
    "test": ("info", "`srobust notify test` was typed"),
}
"""Event → its severity and its meaning."""


def rank(severity: str) -> int:
    """Higher is more severe."""
    return SEVERITIES.index(severity)


class Alert(msgspec.Struct, frozen=True):
    """One event that people may be told of.

    Attributes:
        key: Alerts with the same key say the same thing: the second one is a repetition.
        happened: What happened, as a sentence.
        done: What the daemon has done about the event, as a sentence.
        command: The command that a person may type.
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
    """One message in the form that the outlet gets.

    Attributes:
        id: The message's name, the same for every try to deliver it.
        count: The number of alerts in the message.
        lines: The text below the subject.
        alerts: The first of its alerts, whole.
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
    """The result of one try to deliver a message.

    Attributes:
        final: Another try of the same message would fail in the same way.
        retry_after_s: The pause that the other side asks for; 0 if it asks for none.
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
