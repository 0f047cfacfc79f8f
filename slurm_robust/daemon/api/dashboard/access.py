"""Who may see the dashboard? Pure, except that the token's file is read at the start.

Without a token and without a proxy's header, everyone who can reach the address may. With a token, a header or both, a
person may see it who shows the token (as a bearer, or by a cookie that `?token=` gives), or whom a trusted proxy names.
On loopback, and if names are configured, the Host header has to be one of ours: a foreign web page can make a browser
ask us under the page's own name (DNS rebinding), but not under ours.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slurm_robust.wire import secret_file

COOKIE = "srobust"
COOKIE_MAX_AGE_S = 30 * 86400
TOKEN_MIN_CHARS, TOKEN_MAX_BYTES = 16, 4096
_MAKE = "python3 -c 'import secrets; print(secrets.token_urlsafe(32))'"
_WANTED = f"a token is one word of {TOKEN_MIN_CHARS} characters or more; make it: (umask 077; {_MAKE} >"


class AccessError(Exception):
    """The token's file cannot be used: without the protection that the site asked for, the dashboard is not served."""


@dataclass(frozen=True)
class Asked:
    """The facts by which a request is judged.

    Attributes:
        peer: The address that it comes from; empty if it is not an IP address.
        local: Our address that it came to; empty if it is not an IP address.
        users: All values of the proxy's header.
    """

    peer: str
    local: str
    host: str
    authorization: str = ""
    cookie: str = ""
    query_token: str = ""
    users: Sequence[str] = ()


@dataclass(frozen=True)
class Access:
    """The site's choice.

    Attributes:
        token: Empty for none.
        user_header: Name of the header in which a proxy names its user; empty for none.
        allowed_users: Whom the proxy may name; empty for everyone that it names.
        proxies: Networks of the proxies that are believed.
        hosts: Names under which it may be asked, besides addresses and `localhost`.
    """

    token: str = field(default="", repr=False)
    user_header: str = ""
    allowed_users: frozenset[str] = frozenset()
    proxies: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = ()
    hosts: frozenset[str] = frozenset()

    @property
    def is_open(self) -> bool:
        """Whether everyone who can reach the address is answered."""
        return not self.token and not self.user_header

    @property
    def cookie(self) -> str:
        """The value of the cookie for people who have shown the token. It is not the token itself."""
        return hmac.new(self.token.encode(), b"slurm_robust dashboard", hashlib.sha256).hexdigest()

    def is_ours(self, asked: Asked) -> bool:
        """False if the Host header names something that we are not."""
        if not self.hosts and not _is_loopback(asked.local):
            return True
        name = _without_port(asked.host)
        return name == "localhost" or name in self.hosts or _address(name) is not None

    def is_admitted(self, asked: Asked) -> bool:
        """Return whether who asks may see everything."""
        if self.is_open:
            return True
        return self._has_token(asked) or self._is_named(asked)

    def shows_token(self, asked: Asked) -> bool:
        """Return whether the address itself has the token, which is to become a cookie."""
        return bool(self.token and asked.query_token) and _same(asked.query_token, self.token)

    def _has_token(self, asked: Asked) -> bool:
        if not self.token:
            return False
        kind, _, given = asked.authorization.partition(" ")
        bearer = kind.lower() == "bearer" and _same(given.strip(), self.token)
        return bearer | _same(asked.cookie, self.cookie)

    def _is_named(self, asked: Asked) -> bool:
        # Two headers: one of them may be the browser's own, which the proxy has not taken out.
        if not self.user_header or len(asked.users) != 1 or not asked.users[0].strip():
            return False
        peer = _address(asked.peer)
        if peer is None or not any(peer in network for network in self.proxies):
            return False
        return not self.allowed_users or asked.users[0].strip() in self.allowed_users


def networks(texts: Sequence[str]) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    """Addresses and networks of proxies.

    Raises:
        ValueError: one of them is neither.
    """
    return tuple(ipaddress.ip_network(text, strict=False) for text in texts)


def read_token(path: Path) -> str:
    """Return the token in this file, which only its owner, and perhaps a group, may read.

    Raises:
        AccessError: it cannot be read, others may read it, or it is too short to be a secret.
    """
    try:
        token = secret_file.read(path, TOKEN_MAX_BYTES, others=0o027)
    except secret_file.SecretFileError as error:
        raise AccessError(f"nothing is shown: {error}; {_WANTED} {path})") from None
    if len(token) < TOKEN_MIN_CHARS:
        raise AccessError(f"nothing is shown: the token in {path} is too short; {_WANTED} {path})")
    return token


def _same(given: str, known: str) -> bool:
    """Return whether two texts are the same, in a time that does not tell how much of them is the same."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), known.encode())


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return mapped or address


def _is_loopback(text: str) -> bool:
    address = _address(text)
    return address is not None and address.is_loopback


def _without_port(host: str) -> str:
    """Return the name or address of a Host header, in lower case."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    name, _, port = host.rpartition(":")
    return (name if name and port.isdecimal() else host).rstrip(".").lower()
