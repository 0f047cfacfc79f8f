"""Quiet looks: stacks taken without an incident, where something may be wrong. Acted on only for what they prove."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from slurm_robust.localize.evidence import RankExit
from slurm_robust.localize.ranks import name
from slurm_robust.model import Conclusion, Signal, SignalKind, Verdict
from slurm_robust.supervise.incident import incident_page
from slurm_robust.supervise.incident.investigation import Investigator
from slurm_robust.text import shortened

if TYPE_CHECKING:
    from slurm_robust.supervise.supervisor import Supervisor

_AFTER_VANISHED_S = (2.2, 4.2, 10.0, 30.0, 60.0, 60.0, 60.0)
"""From one look after ranks vanished to the next; then silence decides. The first two are what a death needs."""
_LOOKS_AFTER_FINISHED = 3
"""Ranks that are known to have finished are given these looks' time: nobody is at fault, and nothing hurries."""
_LOOKS_AT_STOPPED = 4
"""A stopped process is proven by two looks; one that a debugger holds is then looked at as rarely as any other."""

_NO_RANK_AFTER_S = 300.0
"""A container's image takes minutes to come; a step that waits for another one of its job does so silently."""


class Looks:
    """The looks of one attempt.

    Args:
        attempt_began_at_s: Seconds since the epoch.
    """

    def __init__(self, supervisor: Supervisor, attempt_began_at_s: float) -> None:
        self._s = supervisor
        self._no_rank_at_s = attempt_began_at_s + _NO_RANK_AFTER_S
        self._unmeasured: Investigator | None = None
        self._looked_at_s = 0.0
        self._named = False
        self._looked_at_stopped = 0
        self._vanished: Investigator | None = None
        self._vanished_at_s = 0.0
        self._looked = 0

    async def due(self) -> int | None:
        """Take the look that is due, if any; an exit code where that is the end."""
        s, now = self._s, time.time()
        if not s.present.fleet.ranks and s.ended is None and now >= self._no_rank_at_s:
            self._no_rank_at_s = now + s.config.supervise.action_limit_s
            s.folder.tell("note", _no_rank(now - s.present.began_at_s, s.context.ref.job_id, s.silent_nodes))
        if not s.present.scene.vanished:
            self._vanished, self._looked = None, 0
        elif now >= self._vanished_at_s and self._looked <= len(_AFTER_VANISHED_S):
            return await self._at_vanished()
        if s.present.fleet.alive and now >= s.present.quiet_until_s and self._unmeasured_due(now):
            self._looked_at_s = now
            return await self._at_unmeasured()
        return None

    def _unmeasured_due(self, now_s: float) -> bool:
        """Whether a silence is to be looked at that the attempt's own step times do not measure.

        There are none where the job tells no progress, and not enough in its first steps; an announced pause is not
        measured by them. A stopped process is no pause, however long that may last.
        """
        config, present = self._s.config.supervise, self._s.present
        usual_s, silent_s = present.own_limit_s(config), now_s - present.last_sign_s
        if present.reports and self._unmeasured is not None and self._moved(self._unmeasured):
            self._unmeasured, self._named = None, False
        if not present.fleet.stopped:
            self._looked_at_stopped = 0
        elif self._looked_at_stopped < _LOOKS_AT_STOPPED:
            pause_s = config.corroborate_after_s
            due = silent_s >= (usual_s or pause_s) and now_s - self._looked_at_s >= pause_s
            self._looked_at_stopped += due
            return due
        pause_s = (
            min(config.quiet_capture_interval_s, config.recapture_s) if self._named else config.quiet_capture_interval_s
        )
        return usual_s is None and silent_s >= config.quiet_capture_interval_s and now_s - self._looked_at_s >= pause_s

    def _moved(self, inquiry: Investigator) -> bool:
        """Whether the job has shown progress since the first of these captures."""
        present = self._s.present
        return present.reports and bool(inquiry.captures) and present.last_sign_s > inquiry.captures[0].at_s

    async def _at_vanished(self) -> int | None:
        """Ranks are gone, and srun says nothing: finished, or dead? It is the others' waiting that tells.

        A training that ends loses its ranks one by one, and a rank that has finished holds nobody up.
        """
        s = self._s
        if self._vanished is None:
            self._vanished = self._inquiry()
            who = name(s.present.scene.vanished)
            text = f"{who} ended while srun runs on and says nothing of it: finished or dead, the others' stacks tell"
            s.folder.tell("note", text, ranks=sorted(s.present.scene.vanished))
        await self._vanished.capture(keep=False)
        self._vanished_at_s = time.time() + _AFTER_VANISHED_S[min(self._looked, len(_AFTER_VANISHED_S) - 1)]
        self._looked += 1
        gone = list(s.present.scene.vanished.values())
        if s.present.scene.exits or not gone:
            return None
        if not self._proves(self._vanished.judge(), finished=self._have_finished(gone)):
            return None
        found, self._vanished = self._vanished, None
        first = min(gone, key=lambda e: e.at_s)
        record = s.book.open(first.at_s)
        how = "exit status unknown" if first.exit_code is None else f"exit code {first.exit_code}"
        text = f"rank {first.rank} on {first.node} is gone ({how}), and the others wait for it"
        s.folder.tell("suspected", text, incident=record.id)
        record.signals.append(Signal(SignalKind.RANK_EXITED, first.at_s, "watch", how, first.node, first.rank))
        return await self._act(found, record, finished=self._have_finished(gone))

    async def _at_unmeasured(self) -> int | None:
        """Look at the stacks of a silence that nothing else tells from work.

        No incident is opened and nothing is written before they prove a hang, so that any program may be supervised.
        """
        s = self._s
        if self._unmeasured is None:
            self._unmeasured = self._inquiry()
        await self._unmeasured.capture(keep=False)
        verdict = self._unmeasured.judge()
        self._named = verdict.conclusion is Conclusion.CULPRIT
        if not self._proves(verdict) or self._moved(self._unmeasured):
            return None
        found, self._unmeasured = self._unmeasured, None
        since_s, why = found.captures[0].at_s, "the job tells no progress"
        if s.present.reports:
            since_s = s.present.last_sign_s
            why = f"no progress for {time.time() - since_s:.1f} s"
        record = s.book.open(since_s)
        why += ", and its stacks do not move"
        s.folder.tell("suspected", f"silence suspected: {why}", incident=record.id)
        record.signals.append(Signal(SignalKind.SILENCE, time.time(), "stacks", why))
        return await self._act(found, record)

    def _inquiry(self) -> Investigator:
        return self._s.handling.investigator(incident_page.Record("", "", "", 0.0))

    def _have_finished(self, gone: list[RankExit]) -> bool:
        """All of them with exit code 0, and long enough ago: whoever waits for them waits for ever."""
        return self._looked > _LOOKS_AFTER_FINISHED and all(e.exit_code == 0 for e in gone)

    @staticmethod
    def _proves(verdict: Verdict, *, finished: bool = False) -> bool:
        if finished and verdict.conclusion is Conclusion.USER_CODE:
            return True
        return verdict.conclusion is Conclusion.CULPRIT and verdict.corroborated

    async def _act(self, found: Investigator, record: incident_page.Record, *, finished: bool = False) -> int | None:
        inquiry = self._s.handling.investigator(record)
        inquiry.take_over(found)
        await inquiry.capture()
        return await self._s.handling.proven(inquiry, record, finished=finished)


def _no_rank(waited_s: float, job_id: int, silent_nodes: Sequence[str]) -> str:
    text = f"no rank has been seen in {waited_s / 60:.0f} min: "
    if silent_nodes:
        return text + f"no agent answers on {shortened(', '.join(silent_nodes), 120)} either; see: sinfo -R"
    return text + (
        "srun waits for what another step of the job holds, or a prolog or a container's image takes its time; "
        f"see: squeue --steps --jobs {job_id}"
    )
