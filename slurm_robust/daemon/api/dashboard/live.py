"""Sends changes to open pages: server-sent events, bounded in number of watchers, memory and rate.

All watchers of a page get the same bytes. A client that does not read is dropped; its browser then connects again, and
gets the missing changes, or everything.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import Callable
from itertools import count
from typing import Any

import msgspec
from aiohttp import web

from slurm_robust.daemon.api.dashboard.tree import Board, Element, difference, everything, html

CLIENTS_MAX = 64
QUEUE_MAX = 16
"""Changes that wait for one watcher; who has more is dropped."""
KEPT_MAX, KEPT_MAX_BYTES = 32, 4 << 20
"""The most changes that are kept for browsers that load a page and connect a moment later."""
PAGES_MAX = 64
"""The number of pages without watchers of which the last board is kept."""
GAP_S = 0.2
"""The least time between two changes, so that many snapshots at once become a few changes."""
WARM_S = 600.0
"""The time for which a page without watchers is kept up to date after a request for it."""
BEAT_S = 5.0
WRITE_S = 20.0
"""A watcher that takes no byte for so long is dropped."""
RETRY_MS = 1000


class Watcher:
    """One watcher of a page, with the messages that wait to be sent."""

    def __init__(self) -> None:
        self.waiting: deque[bytes] = deque()
        self.ready = asyncio.Event()
        self.is_dropped = False

    def give(self, message: bytes) -> None:
        """Send this soon; a watcher with too much that waits is dropped."""
        if len(self.waiting) >= QUEUE_MAX:
            self.drop()
        else:
            self.waiting.append(message)
            self.ready.set()

    def drop(self) -> None:
        """Send this watcher nothing more, and end its request."""
        self.is_dropped = True
        self.waiting.clear()
        self.ready.set()


class LivePage:
    """One page: its last board, and its watchers."""

    def __init__(self, boot: str, make: Callable[[dict[str, Any]], Board | None]) -> None:
        self.watchers: set[Watcher] = set()
        self.board: Board | None = None
        self.asked_at_s = 0.0
        self._boot, self._make = boot, make
        self._version = 0
        self._of: dict[str, Any] | None = None
        self._kept: deque[tuple[int, bytes]] = deque()
        self._html: dict[str, str] | None = None
        self._pieces: dict[str, dict[str, tuple[Element, str]]] = {}

    @property
    def version(self) -> str:
        """The name of this board, in this process."""
        return f"{self._boot}-{self._version}"

    def refresh(self, snapshot: dict[str, Any]) -> bytes | None:
        """Make the board of this snapshot; return the message with the changes, or None."""
        if snapshot is self._of:
            return None
        old, new = self.board, self._make(snapshot)
        self._of = snapshot
        if new is None:
            return None
        self.board = new
        changes = difference(old, new) if old is not None else None
        if old is not None and changes == {} and old.title == new.title:
            return None
        self._version += 1
        self._html = None
        if changes is None:
            self._kept.clear()
            return b"event: reload\ndata: {}\n\n" if old is not None else None
        message = _message("change", {"title": new.title, "sections": changes}, self.version)
        self._kept.append((self._version, message))
        while len(self._kept) > KEPT_MAX or sum(len(m) for _, m in self._kept) > KEPT_MAX_BYTES:
            self._kept.popleft()
        return message

    def rows(self) -> dict[str, str]:
        """Return the HTML of each section's rows."""
        if self._html is None and self.board is not None:
            last, self._pieces = self._pieces, {}
            self._html = {}
            for name, section in self.board.sections.items():
                # A row that is the same object as before has the same text.
                before = last.get(name, {})
                now = {
                    key: known if (known := before.get(key)) is not None and known[0] is row else (row, html(row))
                    for key, row in section.rows.items()
                }
                self._pieces[name], self._html[name] = now, "".join([text for _, text in now.values()])
        return self._html or {}

    def since(self, version: str) -> list[bytes]:
        """Return the messages that a browser with this version lacks: the changes since then, or everything."""
        boot, _, number = version.rpartition("-")
        if boot == self._boot and number.isdecimal() and len(number) < 20:
            known = int(number)
            missing = [message for n, message in self._kept if n > known]
            if len(missing) == self._version - known:
                return missing
        if self.board is None:
            return []
        value = {"title": self.board.title, "sections": everything(self.board), "shape": list(self.board.sections)}
        return [_message("everything", value, self.version)]


class Live:
    """All pages that are watched."""

    def __init__(
        self, snapshot: Callable[[], dict[str, Any]], now_s: Callable[[], float], boot: str, gap_s: float = GAP_S
    ) -> None:
        self._snapshot, self._now_s, self._boot, self._gap_s = snapshot, now_s, boot, gap_s
        self._channels: OrderedDict[str, LivePage] = OrderedDict()
        self._made = count()
        self._timer: asyncio.TimerHandle | None = None
        self._next_at_s = 0.0
        self._is_closed = False

    @property
    def watching(self) -> int:
        """Return how many clients watch a page now."""
        return sum(len(channel.watchers) for channel in self._channels.values())

    def channel(self, page: str, make: Callable[[dict[str, Any]], Board | None]) -> LivePage | None:
        """Return the page as it is now; None if the snapshot has nothing of that name."""
        # A page that was forgotten and is made again counts from one: its versions must not look like the old ones.
        channel = self._channels.get(page) or LivePage(f"{self._boot}.{next(self._made)}", make)
        self._refresh(channel)
        if channel.board is None:
            return None
        channel.asked_at_s = asyncio.get_running_loop().time()
        self._channels[page] = channel
        self._channels.move_to_end(page)
        for name in [n for n, c in self._channels.items() if not c.watchers][: max(0, len(self._channels) - PAGES_MAX)]:
            del self._channels[name]
        return channel

    def changed(self) -> None:
        """Note a new snapshot: watchers are told at once, or soon if they were told just now."""
        if self._timer is None and not self._is_closed:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(max(loop.time(), self._next_at_s), self._tell)

    def forget(self) -> None:
        """Forget the pages without watchers."""
        self._channels = OrderedDict((name, c) for name, c in self._channels.items() if c.watchers)

    def close(self) -> None:
        """End the requests of all watchers."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for channel in self._channels.values():
            for watcher in channel.watchers:
                watcher.drop()

    async def watch(self, request: web.Request, channel: LivePage, known: str) -> web.StreamResponse:
        """Tell this watcher what changes, until it goes or is dropped."""
        if self.watching >= CLIENTS_MAX or self._is_closed:
            raise web.HTTPServiceUnavailable(text="too many watch already\n", headers={"Retry-After": "10"})
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        )
        watcher = Watcher()
        channel.watchers.add(watcher)
        try:
            await response.prepare(request)
            watcher.waiting.extend([f"retry: {RETRY_MS}\n\n".encode(), *channel.since(known), self._beat()])
            while not watcher.is_dropped:
                watcher.ready.clear()
                while watcher.waiting:
                    await asyncio.wait_for(response.write(watcher.waiting.popleft()), WRITE_S)
                if not watcher.is_dropped:
                    await self._next(watcher)
        except (ConnectionError, asyncio.TimeoutError):
            watcher.is_dropped = True
        finally:
            channel.watchers.discard(watcher)
        if watcher.is_dropped and not self._is_closed and request.transport is not None:
            request.transport.abort()
        return response

    async def _next(self, watcher: Watcher) -> None:
        try:
            await asyncio.wait_for(watcher.ready.wait(), BEAT_S)
        except asyncio.TimeoutError:
            watcher.waiting.append(self._beat())

    def _beat(self) -> bytes:
        return _message("beat", {"now_s": self._now_s(), "at_s": self._snapshot().get("at_s", 0.0)})

    def _tell(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        watched = [channel for channel in self._channels.values() if channel.watchers]
        # A page without watchers takes no time and no memory.
        for name in [n for n, c in self._channels.items() if not c.watchers and loop.time() - c.asked_at_s >= WARM_S]:
            del self._channels[name]
        for channel in self._channels.values():
            self._refresh(channel)
            # Who loads the page next need not wait for that.
            channel.rows()
        beat = self._beat() if watched else b""
        for watcher in [watcher for channel in watched for watcher in channel.watchers]:
            watcher.give(beat)
        self._next_at_s = loop.time() + self._gap_s

    def _refresh(self, channel: LivePage) -> None:
        """Bring a page up to date, and tell its watchers."""
        message = None
        # A snapshot of another version may lack something: the old page stays, and shows its age.
        with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
            message = channel.refresh(self._snapshot())
        if message is not None:
            for watcher in channel.watchers:
                watcher.give(message)


def _message(event: str, value: dict[str, Any], version: str = "") -> bytes:
    name = f"id: {version}\n" if version else ""
    return f"event: {event}\n{name}data: ".encode() + msgspec.json.encode(value) + b"\n\n"
