"""Which daemon of the cluster acts? The daemon whose lease stands in a node's `Comment`; every other daemon stands by.

A daemon that stands by asks, in that marker, whether the other one lives. It measures the time without an answer by its
own steady clock, so clocks of hosts may differ. Time in which Slurm does not answer does not count. A daemon that was
frozen looks before its next action. If Slurm does not take a lease, and no other daemon has one, this daemon acts, and
says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import platform
import secrets
from collections.abc import AsyncIterator

from slurm_robust.core.model import Mode
from slurm_robust.core.text import printable
from slurm_robust.daemon.context import DaemonContext
from slurm_robust.marks.lease_marker import LeaseMarker, parse, render, word
from slurm_robust.slurm.client import Node
from slurm_robust.slurm.errors import SlurmError, SlurmNotFoundError, SlurmTimeoutError, SlurmUnavailableError

LOOK_S, LATE_S = 1.5, 7.0
"""The time between two looks of a daemon that stands by, and of one that acts, without readings of the nodes."""
VALID_S = 9.0
"""The time without a look after which a daemon that acts looks before its next action."""
ASK_AFTER_S, UNANSWERED_S = 5.0, 14.0
"""The time from an answer to the next question of a daemon that stands by; and the age of a question without answer."""
GAP_S = 5.0
"""The time without a look after which a daemon counts anew: Slurm was away, or this daemon slept."""
SETTLE_S = 0.2
"""The least time between writing and reading again: another daemon may have written at the same time."""
SURELY_S = 30.0
"""A dead daemon's place is taken within this time."""
WRITE_AGAIN_S = 60.0
"""The time between two tries after Slurm has refused a lease."""


class StandingByError(SlurmUnavailableError):
    """Another daemon acts, so this daemon may not."""


class Lease:
    """This daemon's part of the lease. Before `begin` no lease is asked for; in observe mode none is needed."""

    def __init__(self, context: DaemonContext) -> None:
        self.context = context
        self.host = word(platform.node())
        self.acts = True
        self.holder: LeaseMarker | None = None
        """Another daemon that acts, or acted before."""
        self.took_over = False
        """Whether another daemon's place was taken; the service clears this once it has begun anew."""
        self._begun = False
        self._mine = LeaseMarker(self.host, "")
        self._seen: tuple[LeaseMarker | None, float] = (None, 0.0)
        """The marker that was last seen while standing by, and since when."""
        self._looked_s = self._tried_s = self._held_s = self._refused_s = float("-inf")
        self._questions = 0
        self._busy = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Ask for the lease from now on."""
        journal = self.context.journal
        if not (name := journal.get("lease_id")):
            journal.put("lease_id", name := secrets.token_hex(8))
        self._mine = LeaseMarker(self.host, name)
        self._begun, self.acts = True, False
        self._task = asyncio.create_task(self._keep())

    def close(self) -> None:
        """Look no more. The lease stays: this daemon's next start has it at once."""
        if self._task is not None:
            self._task.cancel()

    @property
    def standing_by(self) -> bool:
        """True while this daemon does nothing, since another one acts, or since it does not know yet."""
        return self._used and not self.acts

    @property
    def _used(self) -> bool:
        return self._begun and self.context.mode is Mode.ACT

    async def check(self) -> None:
        """Look before an action, if the last look was long ago.

        Raises:
            StandingByError: another daemon acts.
            SlurmError: Slurm does not answer.
        """
        steady = self.context.steady_s
        if self._used and self.acts and steady() - self._held_s > VALID_S:
            await self.look()
            # Its answer may have come at the moment in which another one took its place.
            await self.context.pause(SETTLE_S)
            await self.look()
        if self.standing_by:
            who = f"the daemon on {self.holder.host} acts" if self.holder else "not known yet who acts"
            raise StandingByError("this daemon stands by", who)

    async def _keep(self) -> None:
        """Look again and again, beside the polls: one of them may take long."""
        while True:
            await self.context.pause(0.5)
            await self.turn()

    async def turn(self) -> None:
        """Look if it is time."""
        context, now_s = self.context, self.context.steady_s()
        every_s = LATE_S if self.acts else LOOK_S
        if not self._used or now_s - self._looked_s < every_s or now_s - self._tried_s < LOOK_S:
            return
        try:
            await self.look()
        except SlurmError as error:
            context.info("lease.unread", str(error), key="lease")
        self._tried_s = context.steady_s()

    async def look(self) -> None:
        """Read the lease by a call of its own, and do what follows."""
        if (known := self._known()) is None:
            return
        async with self._busy, self._fails_open(known.name):
            began_s = self.context.steady_s()
            if (there := await self._read(known.name)) is not None:
                await self._weigh(there, began_s)

    async def seen(self, began_s: float) -> None:
        """Do the same as `look` after a reading of the nodes that began then (steady clock)."""
        if self._used and (known := self._known()) is not None and not self._busy.locked():
            async with self._busy, self._fails_open(known.name):
                await self._weigh(known, began_s)

    @contextlib.asynccontextmanager
    async def _fails_open(self, name: str) -> AsyncIterator[None]:
        """Let the daemon act if Slurm does not show a lease, or after an error of ours: a site needs a daemon."""
        context, why = self.context, ""
        try:
            yield
        except (SlurmUnavailableError, SlurmTimeoutError):
            raise
        except SlurmError as error:
            why = error.text or error.what
        except Exception as error:  # noqa: BLE001 (see above)
            why = f"{type(error).__name__}: {error}"
            if f"({why}" not in context.troubles.get("lease", ""):
                context.own_error(error, "the lease")
        if why:
            self._refused(name, why)
            if self.holder is None:
                self.acts, self._held_s = True, context.steady_s()

    def _known(self) -> Node | None:
        """Return the place in the last reading: the first node with a lease, else the first node in a partition."""
        picture = self.context.picture
        name = min(picture.leased, default="")
        name = name or min((n for members in picture.partitions.values() for n in members), default="")
        return picture.nodes[name] if name else None

    async def _read(self, name: str) -> Node | None:
        try:
            return (await self.context.call(self.context.client.nodes_named, (name,)))[0]
        except SlurmNotFoundError:
            self.context.readings.whole_at_s = 0.0  # it has left the site: the next reading shows another place
            return None

    async def _weigh(self, there: Node, began_s: float) -> None:
        slept, self._looked_s = began_s - self._looked_s > GAP_S, began_s
        if self.acts:
            await self._hold(there, began_s)
        else:
            await self._wait(there, began_s, slept=slept)

    async def _hold(self, there: Node, began_s: float) -> None:
        marker = parse(there.comment)
        if marker is not None and not marker.same(self._mine):
            self.acts, self.holder, self._seen = False, marker, (marker, began_s)
            text = f"the daemon on {marker.host} has taken this one's place, which gave no answer; it stands by now"
            self.context.alert("lease.lost", text)
            return
        if marker == self._mine:
            self.context.trouble("lease", "")
        elif began_s - self._refused_s >= WRITE_AGAIN_S:
            await self._write(there, self._mine)
        self._held_s = began_s

    async def _wait(self, there: Node, began_s: float, *, slept: bool) -> None:
        marker, new = parse(there.comment), False
        if self._mine.same(marker) or (marker is None and self.holder is None):
            await self._take(there)
        else:
            if marker is not None and not marker.same(self.holder):
                self.holder, new = marker, True
                text = f"the daemon on {marker.host} acts, by its lease in the Comment of {there.name}"
                self.context.alert("lease.standing_by", f"{text}; this one takes its place once it does not answer")
            if slept or marker != self._seen[0]:
                self._seen = (marker, began_s)
            waited_s = began_s - self._seen[1]
            if marker is not None and not marker.asked:
                if new or waited_s >= ASK_AFTER_S:
                    await self._ask(there, marker)
            elif waited_s >= UNANSWERED_S:
                await self._take(there)

    async def _ask(self, there: Node, marker: LeaseMarker) -> None:
        self._questions += 1
        question = marker._replace(asked=f"{self._mine.id}.{self._questions}")
        fresh = await self._read(there.name)
        if fresh is not None and parse(fresh.comment) == marker and await self._write(fresh, question):
            self._seen = (question, self.context.steady_s())

    async def _take(self, there: Node) -> None:
        """Write this daemon's lease if nothing has changed since, and act if the lease still stands a moment later."""
        steady, name, marker = self.context.steady_s, there.name, parse(there.comment)
        if marker != self._mine:  # else it is this daemon's own, without a question
            began_s = steady()
            fresh = await self._read(name)
            if fresh is None or parse(fresh.comment) != marker:
                return
            if await self._write(fresh, self._mine):
                await self.context.pause(max(SETTLE_S, 2 * (steady() - began_s)))
                self._looked_s = steady()
                fresh = await self._read(name)
                now = parse(fresh.comment) if fresh is not None else None
                if fresh is None or (now is not None and not now.same(self._mine)):
                    return
                if now is None:
                    self._refused(name, "it is not there after it was written")
            if self._refused_s >= began_s and self.holder is not None:
                return  # it may live: without an answer this is unknown
        self._act(name)

    def _act(self, name: str) -> None:
        context, before = self.context, self.holder
        self.acts, self.holder, self._held_s = True, None, context.steady_s()
        where = f"its lease stands in the Comment of {name}"
        if before is None:
            context.info("lease.acts", f"this daemon acts; {where}")
            return
        self.took_over = True
        text = f"the daemon on {before.host} has not answered for {UNANSWERED_S:g} s: this one on {self.host} acts now"
        context.alert("lease.taken", f"{text}; {where}")

    async def _write(self, there: Node, marker: LeaseMarker) -> bool:
        """False if Slurm refuses it."""
        name, context = there.name, self.context
        try:
            await context.call(context.client.set_node_comment, name, render(marker, there.comment))
        except (SlurmUnavailableError, SlurmTimeoutError):
            raise
        except SlurmError as error:
            self._refused(name, error.text or error.what)
            return False
        context.trouble("lease", "")
        return True

    def _refused(self, name: str, why: str) -> None:
        context, said = self.context, printable(why)[:200]
        self._refused_s = context.steady_s()
        text = f"Slurm keeps no lease of this daemon in the Comment of {name} ({said})"
        if self.holder is None:
            text += ", so a second daemon would not notice it: scontrol show node " + name
        else:
            text += f", so it cannot ask whether the daemon on {self.holder.host} lives, and stands by; if that one is "
            text += f"gone: scontrol update nodename={name} comment="
        context.trouble("lease", text)
        context.alert("lease.refused", text, key="lease")

    def shown(self) -> dict[str, object]:
        """Return for the snapshot: whether it stands by, and the host of the daemon that acts; empty if unknown."""
        host = self.host if not self.standing_by else self.holder.host if self.holder is not None else ""
        return {"standing_by": self.standing_by, "host": host}
