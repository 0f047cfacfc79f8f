"""Is a machine of this job slow? Step timings looked at now and then, and what they tell announced. Acts on nothing."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from slurm_robust.localize.slow.judge import judge_timings
from slurm_robust.localize.slow.timings import Timings
from slurm_robust.localize.slow.timings_writer import packed
from slurm_robust.model import Conclusion, Verdict

if TYPE_CHECKING:
    from slurm_robust.supervise.supervisor import Supervisor

NEW_STEPS = 10
"""Between two looks: the second one must see other steps to agree."""
_COST_SHARE = 200
"""A look is followed by so many times its own length without one."""
FOLDER = "slow"


class Slowness:
    """The looks at slowness of one attempt.

    A node is announced when two looks in a row name it, and again only when other nodes are named.
    """

    def __init__(self, supervisor: Supervisor, now_s: float) -> None:
        self._s = supervisor
        self._due_s = now_s + supervisor.config.supervise.slowness_interval_s
        self._last_step = -1
        self._named: frozenset[str] = frozenset()
        self._told: frozenset[str] = frozenset()
        self._look: asyncio.Task[None] | None = None

    def due(self, now_s: float) -> None:
        """Begin a look where one is due; it runs beside the supervision, in a thread."""
        fleet = self._s.present.fleet
        if now_s < self._due_s or (self._look is not None and not self._look.done()):
            return
        self._due_s = now_s + self._s.config.supervise.slowness_interval_s
        if len(fleet.timings) < NEW_STEPS or fleet.timings.last_step < self._last_step + NEW_STEPS:
            return
        self._last_step = fleet.timings.last_step
        self._look = asyncio.create_task(self._judge(timings_of(self._s)))

    async def _judge(self, timings: Timings) -> None:
        began_s = time.monotonic()
        try:
            verdict = await asyncio.to_thread(judge_timings, timings)
        except Exception as error:  # noqa: BLE001 (a fault of ours in weighing evidence must not end the supervision)
            self._s.folder.tell("note", f"the step times could not be weighed: {error!r}; please report this")
            self._due_s = float("inf")
            return
        self._due_s = max(self._due_s, time.monotonic() + _COST_SHARE * (time.monotonic() - began_s))
        culprit = verdict.conclusion is Conclusion.CULPRIT
        named = frozenset(s.node for s in verdict.suspects) if culprit else frozenset[str]()
        again, self._named = named & self._named, named
        if again and again != self._told:
            self._told = again
            await self._tell(verdict, again, timings)

    async def _tell(self, verdict: Verdict, nodes: frozenset[str], timings: Timings) -> None:
        name = f"{FOLDER}/timings-{timings.steps[-1]}.jsonl.gz"
        self._s.folder.write(name, await asyncio.to_thread(packed, timings))
        sure = max(s.confidence for s in verdict.suspects if s.node in nodes)
        text = f"slow: {verdict.reason}; {verdict.detail} (confidence {sure:.2f}; nothing is done)"
        self._s.folder.tell("slow", text, nodes=sorted(nodes), confidence=sure, timings=name)


def timings_of(supervisor: Supervisor) -> Timings:
    """What the ranks told, with the layout where it is known."""
    present = supervisor.present
    layout = present.scene.layout or next((r.layout for r in present.fleet.ranks.values() if r.layout), {})
    return present.fleet.timings.table(layout)
