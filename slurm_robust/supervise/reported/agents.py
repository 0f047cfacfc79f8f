"""Starts all agents of a job: one watch step, and an extra step for each node whose agent fell silent.

A new watch step over all nodes would wait for a dead node; so a silent node gets an extra step, and other nodes keep
the main one.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping, Sequence

from slurm_robust.supervise.agent import messages
from slurm_robust.supervise.agent.node_ring import NO_FILES, NodeFiles
from slurm_robust.supervise.clock import CLOCK, Clock
from slurm_robust.supervise.reported.watch_step import WatchStep

_MAX_EXTRAS = 8
"""If more nodes than this are silent, the channel is slow, and an srun for each node would make it slower."""
_HELLO_S = 15.0
"""From the start of a watch step to its agents' first message."""


class Agents:
    """Starts agents on the nodes of the job, and sends messages to all agents."""

    def __init__(
        self,
        job_id: int,
        tick_s: float,
        handler: messages.Handler,
        log: Callable[[str], None],
        *,
        clock: Clock = CLOCK,
        files: NodeFiles = NO_FILES,
    ) -> None:
        start = functools.partial(WatchStep, job_id, tick_s, log=log, clock=clock, files=files)
        self._new: Callable[[], WatchStep] = functools.partial(start, handler)
        self._log = log
        self._clock = clock
        self._handler = handler
        self._main_heard_at: dict[str, float] = {}
        self._main = start(self._from_main)
        self._extra: dict[str, tuple[WatchStep, float]] = {}
        self._started_at = 0.0

    def _from_main(self, message: messages.FromAgent) -> None:
        self._main_heard_at[message.node] = self._clock.monotonic_s()
        self._handler(message)

    @property
    def running(self) -> bool:
        """Whether the watch step runs; it ends with its job."""
        return self._main.running

    @property
    def skipped_lines(self) -> int:
        """Foreign or garbled lines on the channel."""
        return sum(watch.decoder.skipped for watch in self._steps)

    async def start(self, nodes: Sequence[str], attempt: str) -> None:
        """Start agents on these nodes."""
        await self._drop_extras()
        self._started_at = self._clock.monotonic_s()
        await self._main.start(nodes, attempt)

    def look_back(self, seconds: float) -> None:
        """Have the first agents read their nodes' findings of so many seconds: another supervisor has watched them."""
        self._main.watched_since_s = self._clock.monotonic_s() - seconds

    async def stop(self) -> None:
        """End all agents."""
        await self._drop_extras()
        await self._main.stop()

    async def _drop_extras(self) -> None:
        extras, self._extra = list(self._extra.values()), {}
        await asyncio.gather(*(watch.stop() for watch, _ in extras))

    @property
    def _steps(self) -> list[WatchStep]:
        return [self._main, *(watch for watch, _ in self._extra.values())]

    def send(self, message: messages.ToAgent) -> None:
        """Send a message to every agent."""
        for watch in self._steps:
            watch.send(message)

    def watch_attempt(self, attempt: str) -> None:
        """Turn all agents to another attempt."""
        for watch in self._steps:
            watch.watch_attempt(attempt)

    def _main_answers(self, node: str, silent_s: float) -> bool:
        """Return whether the main watch step has recently heard from this node, since its extra agent was started."""
        heard = self._main_heard_at.get(node, 0.0)
        return heard > self._extra[node][1] and self._clock.monotonic_s() - heard < silent_s

    async def look_after(self, nodes: Sequence[str], heard_at_s: Mapping[str, float], silent_s: float) -> list[str]:
        """Start an extra agent on each node that fell silent; return the silent nodes."""
        now, wall = self._clock.monotonic_s(), self._clock.now_s()
        spare = [n for n in self._extra if n not in nodes or self._main_answers(n, silent_s)]  # or evicted meanwhile
        await asyncio.gather(*(self._extra.pop(node)[0].stop() for node in spare))
        silent = []
        for node in nodes:
            heard = heard_at_s.get(node)
            quiet = wall - heard > silent_s if heard is not None else now - self._started_at > _HELLO_S
            if not quiet:
                continue
            silent.append(node)
            if node not in self._extra and len(self._extra) < _MAX_EXTRAS:
                self._log(f"the agent of {node} is silent; starting another one there")
                watch = self._new()
                watch.watched_since_s = self._main.watched_since_s
                self._extra[node] = (watch, now)
                await watch.start([node], self._main.attempt)
        return silent
