"""Gives lemons to quarantine, if the site wants that: one a day at most, never against the breaker.

Once a day `srobust report lemons` runs as a child with a deadline, with the lowest priority. Its answer names nodes,
and is trusted as little as a claim: the node is checked in full, and goes back with a strike if it passes. A node with
a job is left alone until it is free.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import sys
import tempfile
from collections.abc import Sequence
from typing import IO

from slurm_robust.core.text import printable
from slurm_robust.daemon.context import DAY_S, DaemonContext
from slurm_robust.daemon.controllers.breaker import Breaker
from slurm_robust.daemon.store.node_ledger import NodeLedger, Quarantine
from slurm_robust.policy.cluster.lemon_choice import NamedLemon, choose, named_lemons
from slurm_robust.policy.cluster.node_states import PAIR_PREFIX, QUARANTINE_PREFIX, in_reservations

FIRST_AFTER_S = 300.0
"""A daemon that starts has better things to do."""
SINCE = "90d"
"""Lemons fail seldom: less than a quarter of a year names few."""
DEADLINE_S = 600.0
MAX_ANSWER_BYTES = 4 << 20
MEMORY_MAX_BYTES = 4 << 30
LAST_WORDS_BYTES = 300
ASKED_KEY, GIVEN_KEY = "lemons_asked_at_s", "lemons_given"
NICE = ("nice", "-n", "19")


class Lemons:
    """Asks once a day, and gives at most one node a day to quarantine, once it is free."""

    def __init__(self, context: DaemonContext, breaker: Breaker, ledger: NodeLedger) -> None:
        self.context, self.breaker, self.ledger = context, breaker, ledger
        self.program: Sequence[str] = (*NICE, sys.executable, "-m", "slurm_robust.cli.main", "report", "lemons")
        self.deadline_s = DEADLINE_S
        self._started_at_s = context.now_s()
        self._asking: asyncio.Task[tuple[NamedLemon, ...]] | None = None
        self._named: tuple[NamedLemon, ...] = ()

    def restart_timers(self) -> None:
        """Limit remembered times to now, since the clock was set back."""
        now_s = self.context.now_s()
        self._started_at_s = min(self._started_at_s, now_s)
        if self._asked_at_s() > now_s:
            self.context.journal.put(ASKED_KEY, repr(now_s))
        given = self._given()
        if any(at_s > now_s for at_s in given.values()):
            self._write({node: min(at_s, now_s) for node, at_s in given.items()})

    async def tick(self) -> None:
        """Ask for lemons once a day, and give one to quarantine, after each reading of the nodes."""
        context, now_s = self.context, self.context.now_s()
        if not context.config.lemons.act or not context.acting:
            return
        if self._asking is not None:
            self._answered()
        elif now_s - self._started_at_s >= FIRST_AFTER_S and now_s - self._asked_at_s() >= DAY_S:
            context.journal.put(ASKED_KEY, repr(now_s))
            self._asking = asyncio.create_task(self._ask())
        elif self._named:
            self._give(now_s)

    async def close(self) -> None:
        """End the child."""
        if self._asking is not None:
            self._asking.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._asking
            self._asking = None

    def _answered(self) -> None:
        task = self._asking
        if task is None or not task.done():
            return
        self._asking = None
        if task.cancelled():
            return
        try:
            self._named = task.result()
        except (OSError, ValueError) as error:
            self.context.alert("lemons.unknown", f"lemons are not known today: {printable(str(error))}")
            return
        for lemon in self._named:
            self.context.alert("lemon.found", f"{printable(lemon.node)}: {lemon.why}", key=lemon.node)

    def _give(self, now_s: float) -> None:
        """Give the surest lemon that is free to quarantine, unless another one was given within a day."""
        context, given = self.context, self._given()
        window_s = context.config.quarantine.strike_window_days * DAY_S
        given = {node: at_s for node, at_s in given.items() if now_s - at_s < window_s}
        if any(now_s - at_s < DAY_S for at_s in given.values()) or self.breaker.why_open:
            return
        readings = context.readings
        taken = {q.node for q in self.ledger.quarantines()} | readings.busy | readings.at_check
        for prefix in (context.config.seat.prefix, QUARANTINE_PREFIX, PAIR_PREFIX):
            taken |= in_reservations(readings.reservations.values(), prefix)
        lemon = choose(self._named, readings.nodes, taken, given)
        if lemon is None or not self.breaker.room(frozenset((lemon.node,))):
            return
        why = f"fails more often than chance explains: {lemon.why}"
        key = f"lemon.{lemon.node}.{int(now_s)}"
        with context.journal.transaction():
            self._write({**given, lemon.node: now_s})
            self.ledger.quarantine(Quarantine(lemon.node, key, 0, key, why, now_s, now_s))
        context.alert("lemon.quarantined", f"{lemon.node}: {why}; it is checked in full", key=lemon.node)

    def _asked_at_s(self) -> float:
        return float(self.context.journal.get(ASKED_KEY, "0"))

    def _given(self) -> dict[str, float]:
        """Return when each node of the last window was given to quarantine."""
        return {str(node): float(at_s) for node, at_s in json.loads(self.context.journal.get(GIVEN_KEY, "{}")).items()}

    def _write(self, given: dict[str, float]) -> None:
        self.context.journal.put(GIVEN_KEY, json.dumps(given))

    async def _ask(self) -> tuple[NamedLemon, ...]:
        """Run the report to its end.

        Raises:
            OSError: it cannot be started.
            ValueError: it took too long, failed, or gave something else.
        """
        context, folder = self.context, self.context.journal.path
        argv = [*self.program, "--json", f"--since={SINCE}", f"--journal={folder.parent}"]
        argv += [f"--config={context.config_path}"] if context.config_path else []
        names = "".join(f"{name}\n" for name in context.readings.nodes).encode()
        # Files, not pipes: a child that floods or never reads holds nothing up.
        with (
            tempfile.TemporaryFile() as given,
            tempfile.TemporaryFile() as answer,
            tempfile.TemporaryFile() as last_words,
        ):
            given.write(names)
            given.seek(0)
            process = await asyncio.create_subprocess_exec(
                *argv, "--nodes-from=-", stdin=given, stdout=answer, stderr=last_words, start_new_session=True
            )
            try:
                with contextlib.suppress(OSError, ValueError):
                    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (MAX_ANSWER_BYTES, MAX_ANSWER_BYTES))
                    # A quarter of a year of a large site's accounting must not take the daemon's own memory.
                    resource.prlimit(process.pid, resource.RLIMIT_AS, (MEMORY_MAX_BYTES, MEMORY_MAX_BYTES))
                code = await asyncio.wait_for(process.wait(), self.deadline_s)
            except asyncio.TimeoutError:
                raise ValueError(f"the report did not end within {self.deadline_s:g} s") from None
            finally:
                # Whatever it has started is in its session.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
            if code:
                raise ValueError(f"the report exited with {code}: {_end_of(last_words)}")
            answer.seek(0)
            return named_lemons(answer.read(MAX_ANSWER_BYTES))


def _end_of(file: IO[bytes]) -> str:
    """Return the last words that were written to the file."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - LAST_WORDS_BYTES))
    return file.read(LAST_WORDS_BYTES).decode(errors="replace").strip()
