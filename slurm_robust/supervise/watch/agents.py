"""All agents of a job: one watch step, and a small one for each node whose agent fell silent, until it answers again.

A watch step over every node would wait for a dead one; so a silent node gets its own, and the others are left alone.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from slurm_robust.supervise.watch.watch_step import WatchStep

_MAX_EXTRAS = 8
"""With more silent nodes than this it is the channel that is slow, and an srun for each would make it slower."""
_HELLO_S = 15.0
"""From the start of a watch step to its agents' first word."""


class Agents:
    """Starts agents where they are wanted, and speaks to all of them."""

    def __init__(
        self, job_id: int, tick_s: float, handler: Callable[[dict[str, Any]], None], log: Callable[[str], None]
    ) -> None:
        self._new: Callable[[], WatchStep] = functools.partial(WatchStep, job_id, tick_s, handler, log)
        self._log = log
        self._handler = handler
        self._main_heard_at: dict[str, float] = {}
        self._main = WatchStep(job_id, tick_s, self._from_main, log)
        self._extra: dict[str, tuple[WatchStep, float]] = {}
        self._started_at = 0.0

    def _from_main(self, message: dict[str, Any]) -> None:
        self._main_heard_at[str(message.get("n", ""))] = time.monotonic()
        self._handler(message)

    @property
    def running(self) -> bool:
        """Whether the watch step is there; it ends with its job."""
        return self._main.running

    @property
    def skipped_lines(self) -> int:
        """Foreign or garbled lines on the channel."""
        return self._main.decoder.skipped + sum(w.decoder.skipped for w, _ in self._extra.values())

    async def start(self, nodes: Sequence[str], attempt: str) -> None:
        """Have agents on these nodes."""
        await self._drop_extras()
        self._started_at = time.monotonic()
        await self._main.start(nodes, attempt)

    async def stop(self) -> None:
        """End all agents."""
        await self._drop_extras()
        await self._main.stop()

    async def _drop_extras(self) -> None:
        extras, self._extra = list(self._extra.values()), {}
        await asyncio.gather(*(watch.stop() for watch, _ in extras))

    def tell(self, kind: str, **fields: Any) -> None:
        """Send a message to every agent."""
        for watch in (self._main, *(w for w, _ in self._extra.values())):
            watch.tell(kind, **fields)

    def watch_attempt(self, attempt: str) -> None:
        """Turn all agents to another attempt."""
        for watch in (self._main, *(w for w, _ in self._extra.values())):
            watch.watch_attempt(attempt)

    def _main_answers(self, node: str, silent_s: float) -> bool:
        """Whether the watch step itself has heard of this node since its extra agent was wanted, and not long ago."""
        heard = self._main_heard_at.get(node, 0.0)
        return heard > self._extra[node][1] and time.monotonic() - heard < silent_s

    async def look_after(self, nodes: Sequence[str], heard_at_s: Mapping[str, float], silent_s: float) -> list[str]:
        """Start an agent of their own on nodes that fell silent; return the nodes that are silent all the same."""
        now, wall = time.monotonic(), time.time()
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
                self._log(f"the agent of {node} is silent; another one is started there")
                watch = self._new()
                self._extra[node] = (watch, now)
                await watch.start([node], self._main.attempt)
        return silent
