"""`notify:` of robust.yaml: who is told of what happened, how, and when not.

Files are named here, not read: every node reads robust.yaml, and has neither the secrets nor perhaps the time zones.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

SEVERITIES = ("info", "warning", "critical")
_TIME = "([01][0-9]|2[0-3]):[0-5][0-9]"


class NotifySection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A section in which an unknown key is an error, as in the sections of `config`."""


class NotifyTarget(NotifySection, frozen=True):
    """One place to which messages about events are sent."""

    name: Annotated[str, msgspec.Meta(pattern="^[a-z0-9][a-z0-9-]{0,31}$")]
    kind: Literal["slack", "webhook", "email"]
    url: Annotated[str, msgspec.Meta(pattern="^($|https?://[^/@ ]+(/[^ ]*)?$)")] = ""
    url_file: str = ""
    """A file with the URL, if the URL is a secret: it must belong to root, and be readable by no other user."""
    token_file: str = ""
    """A file with a token that a webhook gets as `Authorization: Bearer`; the same."""
    ca_file: str = ""
    """Certificates of a site's own authority; empty: the system's."""
    proxy: Annotated[str, msgspec.Meta(pattern="^($|http://[^/@ ]+/?$)")] = ""
    to: tuple[Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9._+][A-Za-z0-9._+-]*(@[A-Za-z0-9.-]+)?$")], ...] = ()
    sender: Annotated[str, msgspec.Meta(pattern="^($|[A-Za-z0-9._+][A-Za-z0-9._+-]*@[A-Za-z0-9.-]+$)")] = ""
    events: tuple[
        Literal[
            "breaker",
            "stop",
            "hang",
            "bad_loss",
            "drain",
            "takeover",
            "blind",
            "full",
            "lemon",
            "storm",
            "daemon_error",
            "not_resumed",
        ],
        ...,
    ] = ()
    """Empty: all of them."""
    min_severity: Literal["info", "warning", "critical"] = "info"
    quiet_hours: Annotated[str, msgspec.Meta(pattern=f"^($|{_TIME}-{_TIME}$)")] = ""
    time_zone: str = "UTC"
    quiet_severity: Literal["info", "warning", "critical", "none"] = "critical"
    """The lowest severity that is also told in quiet hours."""
    per_hour: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 10

    def __post_init__(self) -> None:
        """Refuse a target that lacks what its kind needs."""
        if self.kind == "email" and not self.to:
            raise ValueError(f"target {self.name}: email needs `to`")
        if self.kind != "email" and bool(self.url) == bool(self.url_file):
            raise ValueError(f"target {self.name}: {self.kind} needs either `url` or `url_file`")


class NotifyConfig(NotifySection, frozen=True):
    """The people to tell of events, and how."""

    user: Annotated[str, msgspec.Meta(pattern="^[a-z_][a-z0-9_-]*$")] = "nobody"
    """The account that the process with the messages runs as."""
    sendmail: tuple[str, ...] = ("/usr/sbin/sendmail", "-t", "-oi")
    targets: Annotated[tuple[NotifyTarget, ...], msgspec.Meta(max_length=16)] = ()

    def __post_init__(self) -> None:
        """Refuse two targets of one name: what is remembered of a target is stored under its name."""
        names = [target.name for target in self.targets]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two targets are called {twice[0]}")
