"""The site's choices for the daemon's HTTP side: a section of `config`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec


class HttpConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The daemon's read-only side."""

    enabled: bool = True
    host: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 9464
    job_labels: bool = False
    """Whether metrics name single jobs and their users."""
    token_file: str = ""
    """The file with the token that a client has to show; empty if no token is needed."""
    user_header: str = ""
    """The header in which a proxy names its user (`X-Remote-User`), believed from `trusted_proxies` alone."""
    allowed_users: tuple[str, ...] = ()
    """The users that the proxy may name; empty to allow every user."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses or networks of the proxies."""
    hosts: tuple[str, ...] = ()
    """Names under which it may be asked, besides addresses and `localhost`."""
    hide: tuple[Literal["jobs", "users"], ...] = ()
    """Whose names the pages hide from everyone."""
    report_every_h: Annotated[float, msgspec.Meta(ge=0)] = 1.0
    """The hours between two makings of the report's pages; 0: never."""

    def __post_init__(self) -> None:
        if self.user_header and not self.trusted_proxies:
            raise ValueError("user_header needs trusted_proxies: anybody could send that header")
        if not self.trusted_proxies:
            return
        import ipaddress  # noqa: PLC0415 (every start of a training reads this file)

        for text in self.trusted_proxies:
            ipaddress.ip_network(text, strict=False)
