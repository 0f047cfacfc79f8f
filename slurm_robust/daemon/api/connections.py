"""Bounds the connections, time, memory and lines of log that foreign clients may use on the HTTP side.

Each connection passes its bytes to aiohttp's protocol, which bounds none of these. A waiting connection (without a
whole request, or with its last request answered) gives way to a newer one, so that half-open connections do not keep
others out.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import resource
import socket
import traceback
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from aiohttp import web

from slurm_robust.core.text import printable

QUIET_S = 60.0
WAIT_MAX = 1024
"""Connections that the kernel keeps until we accept them."""
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True)
class Bounds:
    """The limits of the HTTP side.

    Attributes:
        in_all: The number of connections, if `RLIMIT_NOFILE` allows twice as many files.
        per_peer: The number of connections from one address, or of IPv6 from one /64; 64 browsers behind one proxy need
            fewer.
        header_s: The time for the whole header of a request.
        idle_s: The time between two requests.
        received_bytes: The bytes of one request, and of further data that comes while it is answered.
        stall_s: The time in which a reader must take `stall_bytes` of a waiting answer; otherwise it is dropped.
        unsent_bytes: The bytes of all answers that wait for their readers, together.
    """

    in_all: int = 512
    per_peer: int = 128
    header_s: float = 10.0
    idle_s: float = 75.0
    received_bytes: int = 64 << 10
    stall_s: float = 20.0
    stall_bytes: int = 16 << 10
    unsent_bytes: int = 256 << 20


class OneLineAMinute(logging.Filter):
    """Lets one record of each kind (its format) through in a minute, without its traceback, and counts the others."""

    def __init__(self) -> None:
        super().__init__()
        self._kinds: dict[str, tuple[float, int]] = {}
        """By kind: when a line may be written again, and how many lines have been left out."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True if the record may be written; its text is then one printable line."""
        kind, now_s = str(record.msg), record.created
        next_at_s, unsaid = self._kinds.get(kind, (0.0, 0))
        # A clock that was set back silences nothing.
        if next_at_s - QUIET_S <= now_s < next_at_s:
            self._kinds[kind] = (next_at_s, unsaid + 1)
            return False
        self._kinds[kind] = (now_s + QUIET_S, 0)
        text = record.getMessage()
        if record.exc_info and (error := record.exc_info[1]) is not None:
            places = traceback.extract_tb(error.__traceback__)[-1:]
            text += f": {type(error).__name__}: {error}"[:300] + "".join(f" ({p.filename}:{p.lineno})" for p in places)
        if unsaid:
            text += f" ({unsaid} more like this were not written)"
        record.msg, record.args = printable(text)[:600], ()
        record.exc_info = record.exc_text = record.stack_info = None
        return True


log = logging.getLogger("srobustd.http")
"""The logger of this side, and of aiohttp, which writes the traceback of each malformed request."""
log.addFilter(OneLineAMinute())


class Connections:
    """All connections; called for each new one, as the factory of its protocol.

    An address of `proxies` may have as many connections as all addresses together.
    """

    def __init__(
        self, inner: Callable[[], asyncio.BaseProtocol], bounds: Bounds = Bounds(), proxies: Sequence[Network] = ()
    ) -> None:
        self.bounds = bounds
        self._inner, self._proxies = inner, proxies
        self._in_all = min(bounds.in_all, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        self._peers: Counter[str] = Counter()
        self.waiting: OrderedDict[Connection, None] = OrderedDict()
        """The waiting connections, the one that has waited longest first."""
        self.stalled: OrderedDict[Connection, None] = OrderedDict()

    def __call__(self) -> asyncio.Protocol:
        """Return the protocol of a new one."""
        return Connection(self, cast("asyncio.Protocol", self._inner()))

    @property
    def total(self) -> int:
        """The number of connections."""
        return self._peers.total()

    @property
    def unsent_bytes(self) -> int:
        """The bytes of answers that wait for their readers."""
        return sum(one.unsent_bytes for one in self.stalled)

    @property
    def backlog(self) -> int:
        """The number of connections that asyncio accepts at a time, before the first of them can be refused."""
        return min(128, self._in_all // 4)

    def admit(self, new: Connection) -> bool:
        """Return True if this one may stay; one that waits may be dropped for it."""
        peer, total = new.peer, self.total
        is_much = self._peers[peer] >= self.bounds.per_peer and not self._is_proxy(new.address)
        if is_much or total >= self._in_all:
            oldest = next((one for one in self.waiting if one.peer == peer or not is_much), None)
            if oldest is None:
                log.warning("too many connections (%s): one from %s is refused", total, peer)
                return False
            log.warning("too many connections (%s): one from %s that waits is dropped", total, oldest.peer)
            oldest.drop()
        self._peers[peer] += 1
        return True

    def leave(self, gone: Connection) -> None:
        """Count it no more."""
        self.waiting.pop(gone, None)
        self.stalled.pop(gone, None)
        self._peers[gone.peer] -= 1
        if self._peers[gone.peer] <= 0:
            del self._peers[gone.peer]

    def bound_unsent(self) -> None:
        """Drop the connections that have stalled longest while too many bytes wait for readers."""
        while self.unsent_bytes > self.bounds.unsent_bytes:
            next(iter(self.stalled)).drop()

    def _is_proxy(self, address: Address | None) -> bool:
        return address is not None and any(address in network for network in self._proxies)


class Connection(asyncio.Protocol):
    """One connection: bounded here, and otherwise handled by aiohttp."""

    def __init__(self, connections: Connections, inner: asyncio.Protocol) -> None:
        self.address: Address | None = None
        self.peer = ""
        self._all, self._bounds, self._inner = connections, connections.bounds, inner
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._received_bytes = 0
        self._is_admitted = self._is_begun = False

    @property
    def unsent_bytes(self) -> int:
        """Return how many bytes of answers wait to be sent."""
        return self._transport.get_write_buffer_size() if self._transport else 0

    def drop(self) -> None:
        """End the connection at once; unsent bytes are lost."""
        self._end()
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, unless there are too many."""
        self._transport = cast("asyncio.Transport", transport)
        self.address = _address(transport.get_extra_info("peername"))
        self.peer = _peer(self.address)
        if not self._all.admit(self):
            self._transport.abort()
            return
        self._is_admitted = self._is_begun = True
        self._inner.connection_made(transport)
        self._wait(self._bounds.header_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection, and tell aiohttp's protocol of its end."""
        self._end()
        self._transport = None
        if self._is_begun:
            self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Pass the bytes on, within the bounds."""
        if not self._is_admitted:
            return
        if self in self._all.waiting and not self._received_bytes:
            self._arm(min(self._bounds.header_s, self._left_s()))
        self._received_bytes += len(data)
        if self._received_bytes > self._bounds.received_bytes:
            log.warning("a request from %s is larger than %s bytes", self.peer, self._bounds.received_bytes)
            self.drop()
            return
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        """Tell aiohttp's protocol that the client sends no more."""
        return self._inner.eof_received() if self._is_admitted else None

    def pause_writing(self) -> None:
        """Give the reader a time to take what waits."""
        self._inner.pause_writing()
        self._all.stalled[self] = None
        self._watch_reader(self.unsent_bytes)
        self._all.bound_unsent()

    def resume_writing(self) -> None:
        """Note that the reader has taken the waiting bytes."""
        self._all.stalled.pop(self, None)
        if self._stall is not None:
            self._stall.cancel()
        self._inner.resume_writing()

    @contextlib.contextmanager
    def answering(self) -> Any:
        """Mark the connection as not waiting while a request is answered."""
        self._all.waiting.pop(self, None)
        self._received_bytes = 0
        if self._timer is not None:
            self._timer.cancel()
        try:
            yield
        finally:
            self._received_bytes = 0
            if self._is_admitted:
                self._wait(self._bounds.idle_s)

    def _wait(self, seconds: float) -> None:
        self._all.waiting[self] = None
        self._arm(seconds)

    def _left_s(self) -> float:
        return self._timer.when() - asyncio.get_running_loop().time() if self._timer is not None else 0.0

    def _arm(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._waited)

    def _waited(self) -> None:
        # An answer that is still being sent is the stall's affair.
        if self._all.stalled.get(self, 0) is None:
            self._arm(self._bounds.idle_s)
        else:
            self.drop()

    def _watch_reader(self, before_bytes: int) -> None:
        self._stall = asyncio.get_running_loop().call_later(self._bounds.stall_s, self._check_reader, before_bytes)

    def _check_reader(self, before_bytes: int) -> None:
        if before_bytes - self.unsent_bytes < self._bounds.stall_bytes:
            log.warning("a reader at %s takes nothing and is dropped", self.peer)
            self.drop()
        else:
            self._watch_reader(self.unsent_bytes)

    def _end(self) -> None:
        for timer in (self._timer, self._stall):
            if timer is not None:
                timer.cancel()
        if self._is_admitted:
            self._is_admitted = False
            self._all.leave(self)


def _address(name: Any) -> Address | None:
    """Return the address of a peer's name; None if it has none."""
    try:
        ip = ipaddress.ip_address(str(name[0]).partition("%")[0])
    except (TypeError, IndexError, ValueError):
        return None
    return getattr(ip, "ipv4_mapped", None) or ip


def _peer(address: Address | None) -> str:
    """Return who counts as one peer: an IPv4 address, or the /64 of an IPv6 one."""
    if address is None or address.version == 4:
        return str(address or "")
    return str(ipaddress.ip_network((address, 64), strict=False))


@web.middleware
async def counted(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Tell the connection that a whole request has come."""
    get_protocol = getattr(request.transport, "get_protocol", None)
    connection = get_protocol() if get_protocol is not None else None
    if not isinstance(connection, Connection):
        return await handler(request)
    with connection.answering():
        return await handler(request)


async def listen(connections: Connections, host: str, port: int) -> asyncio.Server:
    """Listen; what asyncio itself cannot do (accept, for lack of descriptors) is said once a minute.

    Raises:
        OSError: the address cannot be listened on.
    """
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_quietly)
    server = await loop.create_server(connections, host, port, backlog=connections.backlog)
    for listening in server.sockets:
        # asyncio accepts as many at a time as may wait; more may wait than we have descriptors for.
        with socket.socket(fileno=os.dup(listening.fileno())) as same:
            same.listen(WAIT_MAX)
    return server


def _quietly(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    log.warning("the event loop: %s", context.get("message"), exc_info=context.get("exception"))
