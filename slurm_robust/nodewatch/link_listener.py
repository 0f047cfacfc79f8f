"""Listens for links that go up or down (source `link`): rtnetlink tells of each at once.

The listener considers the interfaces that the check `ethernet` considers: default routes, RoCE, the site's own, and the
interfaces below them. That check decides whether an interface is without a link. The listener runs in a child: reading
a card's speed waits for the kernel's lock of all interfaces, which a card that resets itself may hold for minutes.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from slurm_robust.marks.node_findings import NodeFinding
from slurm_robust.nodecheck.catalogue import job_urgency
from slurm_robust.nodecheck.engine.context import Context
from slurm_robust.nodecheck.engine.finding import Status
from slurm_robust.nodecheck.sources import network_links
from slurm_robust.nodewatch import urgency
from slurm_robust.nodewatch.child import Body, Message, Send, parent_gone
from slurm_robust.nodewatch.moment import Moment
from slurm_robust.nodewatch.ring import Seen

# Numbers of rtnetlink(7) and the kernel's headers rtnetlink.h and if_link.h.
_RTMGRP_LINK = 1
_RTM_NEWLINK, _RTM_DELLINK = 16, 17
_IFLA_IFNAME, _IFLA_OPERSTATE, _IFLA_CARRIER = 3, 16, 33
_IFF_UP = 0x1
_HEADER = struct.Struct("=IHHII")
_IFINFO = struct.Struct("=BxHiII")
_ATTRIBUTE = struct.Struct("=HH")
_OPERSTATES = ("unknown", "notpresent", "down", "lowerlayerdown", "testing", "dormant", "up")
_REMOVED = "notpresent"
_LOST = urgency.of_check("ethernet", "link_down", Status.WARN).name
_BUFFER_BYTES = 1 << 16
_LOOK_S = 30.0
_MAX_MESSAGES = 256


class LinkListener:
    """Listens to the kernel.

    Attributes:
        fd: Can be read when the kernel has said something.
        due_s: When `tick` is due, monotonic.

    Args:
        context: Where /sys is.
        interfaces: The site's own, `nodecheck.options.ethernet.interfaces`.
    """

    def __init__(self, context: Context, interfaces: Sequence[str]) -> None:
        self.fd, self.due_s = -1, 0.0
        self._context, self._site = context, tuple(interfaces)
        self._socket: socket.socket | None = None
        self._linked: dict[str, bool] = {}

    def open(self, moment: Moment) -> None:
        """Begin to listen; raises OSError if the kernel has no such socket."""
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
        self._socket.setblocking(False)
        self._socket.bind((0, _RTMGRP_LINK))
        self.fd = self._socket.fileno()
        self.due_s = moment.monotonic_s + _LOOK_S
        self._linked = {name: linked for name, linked, _ in self._states()}

    def read(self, moment: Moment) -> list[Seen]:
        """Return the kernel's reports of links that are considered."""
        assert self._socket is not None
        found: list[Seen] = []
        for _ in range(_MAX_MESSAGES):
            try:
                data = self._socket.recv(_BUFFER_BYTES)
            except BlockingIOError:
                break
            except OSError:  # more was said than the buffer holds: look at all of them
                return [*found, *self.tick(moment)]
            for name, state, carrier, up in messages(data):
                if name in self._linked and state == _REMOVED:
                    del self._linked[name]
                    found.append(self._seen(name, _LOST, f"{name} is gone", moment))
                elif name in self._linked:
                    linked = not network_links.without_link({"state": state, "carrier": carrier})
                    found += self._changed(name, moment, linked=linked, up=up)
        return found

    def tick(self, moment: Moment) -> list[Seen]:
        """Look which interfaces are considered now; says what changed unheard."""
        self.due_s = moment.monotonic_s + _LOOK_S
        found = []
        states = self._states()
        for name, linked, up in states:
            if name in self._linked:
                found += self._changed(name, moment, linked=linked, up=up)
        # One that was down stays known when its route is gone with its link.
        known = {name: linked for name, linked in self._linked.items() if not linked}
        self._linked = {**known, **{name: linked for name, linked, _ in states}}
        return found

    def _states(self) -> list[tuple[str, bool, bool]]:
        """Return (name, has a link, is switched on) of the interfaces that are considered."""
        fresh = replace(self._context, shared={})
        names = [*network_links.routed(fresh), *network_links.roce(fresh), *self._site]
        found = network_links.stack(fresh, names)
        return [(name, not network_links.without_link(one), one["up"] is not False) for name, one in found.items()]

    def _changed(self, name: str, moment: Moment, *, linked: bool, up: bool) -> list[Seen]:
        if linked == self._linked[name]:
            return []
        self._linked[name] = linked
        if linked:
            rule, text = job_urgency.NOTE, f"{name} has its link again"
        elif up:
            rule, text = _LOST, f"{name} lost its link"
        else:
            rule, text = job_urgency.NOTE, f"{name} was switched off"
        return [self._seen(name, rule, text, moment)]

    def _seen(self, name: str, rule: str, text: str, moment: Moment) -> Seen:
        return Seen(NodeFinding(0, moment.wall_s, "link", "link", rule, text, (), name), about=text)


def body(context: Context, interfaces: Sequence[str]) -> Body:
    """Return the work of the child: listen until the service is gone, with a sign of life at least each half minute."""

    def run(send: Send) -> None:
        parent = os.getppid()
        listener = LinkListener(context, interfaces)
        listener.open(Moment.now())
        while not parent_gone(parent):
            send({"findings": []})
            ready = select.select([listener.fd], [], [], max(0.0, listener.due_s - time.monotonic()))[0]
            found = listener.read(Moment.now()) if ready else listener.tick(Moment.now())
            if found:
                send({"findings": [seen.finding._asdict() for seen in found]})

    return run


def findings(message: Message, _: Moment) -> list[Seen]:
    """Return the findings in a message of the child."""
    told = (NodeFinding(**{**raw, "gpus": tuple(raw["gpus"])}) for raw in message["findings"])
    return [Seen(finding, about=finding.text) for finding in told]


def messages(data: bytes) -> Iterator[tuple[str, str, str, bool]]:
    """Yield (interface, its state and carrier as /sys has them, switched on) of each link message.

    A broken message is skipped. An interface that is removed is `notpresent`.
    """
    at = 0
    while at + _HEADER.size <= len(data):
        length, kind, _, _, _ = _HEADER.unpack_from(data, at)
        if length < _HEADER.size or at + length > len(data):
            return
        body = data[at + _HEADER.size : at + length]
        at += (length + 3) & ~3
        if kind not in (_RTM_NEWLINK, _RTM_DELLINK) or len(body) < _IFINFO.size:
            continue
        family, _, _, flags, _ = _IFINFO.unpack_from(body)
        if family != socket.AF_UNSPEC:
            continue  # a bridge tells of its ports, not of their links
        values = dict(_attributes(body[_IFINFO.size :]))
        name = values.get(_IFLA_IFNAME, b"").split(b"\0")[0].decode("ascii", "replace")
        operstate = values.get(_IFLA_OPERSTATE, b"\0")[0]
        state = _OPERSTATES[operstate] if operstate < len(_OPERSTATES) else "unknown"
        up = bool(flags & _IFF_UP)
        carrier = str(values[_IFLA_CARRIER][0]) if up and values.get(_IFLA_CARRIER) else ""
        yield name, (_REMOVED if kind == _RTM_DELLINK else state), carrier, up


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < _ATTRIBUTE.size or at + length > len(data):
            return
        value = data[at + _ATTRIBUTE.size : at + length]
        if value:
            yield kind, value
        at += (length + 3) & ~3
