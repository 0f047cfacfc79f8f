"""Judges step timings now and then, and reports a slow node of this job. It does not act."""

from __future__ import annotations

import asyncio
import importlib

from slurm_robust.core.model import Conclusion, Verdict
from slurm_robust.localize.slow.judge import judge_timings
from slurm_robust.localize.slow.timings_file import packed
from slurm_robust.localize.slow.unnamed import slow_but_unnamed
from slurm_robust.localize.timings import StepTimings
from slurm_robust.supervise.session import Session
from slurm_robust.supervise.watch.attempt_state import AttemptState

NEW_STEPS = 10
"""The new steps between two judgements: the second one must see other steps to agree."""
_COST_SHARE = 200
"""After a judgement, the next one waits so many times the processor time that it took."""
FOLDER = "slow"


class Slowness:
    """Judges the step timings of one attempt.

    A node is reported when two judgements in a row name it, and again only when other nodes are named.

    Attributes:
        unnamed: Why ranks are slow with no node named, if two judgements in a row say so; else empty.
    """

    def __init__(self, session: Session, attempt: AttemptState) -> None:
        self._session = session
        self._attempt = attempt
        self._due_s = session.clock.monotonic_s() + session.settings.slowness_interval_s
        self._last_step = -1
        self._named: frozenset[str] = frozenset()
        self._reported: frozenset[str] = frozenset()
        self.unnamed = ""
        self._unnamed_before = False
        self._task: asyncio.Task[None] | None = None

    def poll(self) -> None:
        """Begin a judgement if one is due; it runs in a thread, beside the supervision."""
        timings, now_s = self._attempt.fleet.timings, self._session.clock.monotonic_s()
        if now_s < self._due_s or (self._task is not None and not self._task.done()):
            return
        self._due_s = now_s + self._session.settings.slowness_interval_s
        if len(timings) < NEW_STEPS or timings.last_step < self._last_step + NEW_STEPS:
            return
        self._last_step = timings.last_step
        self._task = asyncio.create_task(self._judge(timings.table(self._attempt.layout)))

    async def _judge(self, timings: StepTimings) -> None:
        clock = self._session.clock
        try:
            verdict, worked_s = await asyncio.to_thread(self._weigh, timings)
        except Exception as error:  # noqa: BLE001 (a fault of ours in weighing evidence must not end the supervision)
            text = f"the step times could not be weighed: {error!r}; please report this"
            self._session.folder.log_event("note", text)
            self._due_s = float("inf")
            return
        self._due_s = max(self._due_s, clock.monotonic_s() + _COST_SHARE * worked_s)
        culprit = verdict.conclusion is Conclusion.CULPRIT
        named = frozenset(s.node for s in verdict.suspects) if culprit else frozenset[str]()
        unnamed = slow_but_unnamed(verdict)
        self.unnamed = verdict.reason if unnamed and self._unnamed_before else ""
        again, self._named, self._unnamed_before = named & self._named, named, unnamed
        if again and again != self._reported:
            self._reported = again
            await self._report(verdict, again, timings)

    def _weigh(self, timings: StepTimings) -> tuple[Verdict, float]:
        """Return the verdict, and the processor time it took: waiting for busy cores costs the job nothing.

        Numpy is loaded before the time is taken. From a slow shared disk that takes seconds, and happens only once.
        """
        importlib.import_module("slurm_robust.localize.slow.verdict")
        began_s = self._session.clock.worked_s()
        return judge_timings(timings), self._session.clock.worked_s() - began_s

    async def _report(self, verdict: Verdict, nodes: frozenset[str], timings: StepTimings) -> None:
        folder = self._session.folder
        name = f"{FOLDER}/timings-{timings.steps[-1]}.jsonl.gz"
        folder.write(name, await asyncio.to_thread(packed, timings))
        sure = max(s.confidence for s in verdict.suspects if s.node in nodes)
        text = f"slow: {verdict.reason}; {verdict.detail} (confidence {sure:.2f}; nothing is done)"
        folder.log_event("slow", text, nodes=sorted(nodes), confidence=sure, timings=name)
