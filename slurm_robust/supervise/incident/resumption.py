"""Follows an attempt's first steps: its first new step closes the incident before it."""

from __future__ import annotations

from dataclasses import replace

from slurm_robust.core.mode import Mode
from slurm_robust.marks import claim
from slurm_robust.supervise.incident.incident_log import IncidentLog
from slurm_robust.supervise.lineage.attempt_start import AttemptStart
from slurm_robust.supervise.lineage.lineage_store import LineageStore
from slurm_robust.supervise.session import Session
from slurm_robust.supervise.watch.attempt_state import AttemptState

_UNNAMED_S = 10.0
"""After this long, "training at step N" is reported with the ranks that were found so far."""
_START_MARKS = ("imports_done", "process_groups_ready", "checkpoint_loaded")


class Resumption:
    """The first steps of one attempt, as they are reported."""

    def __init__(
        self, session: Session, attempt: AttemptState, start: AttemptStart, store: LineageStore, log: IncidentLog
    ) -> None:
        self._session = session
        self._attempt = attempt
        self._start = start
        self._store = store
        self._log = log
        self._training_reported = False
        self._new_step_seen = False

    async def poll(self) -> None:
        """Report that training starts, that it started over, or that it has made its first new step."""
        attempt, folder = self._attempt, self._session.folder
        step, fleet, resumed_at = attempt.step, attempt.fleet, attempt.resume_point.step
        if step < 0:
            return
        if over := self._start.judge():
            if self._log.current is not None:
                self._log.add_note(over.text)
                self._log.save()
            folder.log_event("started-over", over.text, step=over.step, reached=over.reached)
        # The job's output is often read before the agents have found the ranks, which they find one after the other.
        named = fleet.complete or self._session.clock.now_s() - attempt.began_at_s > _UNNAMED_S
        if named and not self._training_reported and (step > resumed_at or resumed_at < 0):
            self._training_reported = True
            where = ",".join(sorted({r.node for r in fleet.ranks.values()})) or "unknown nodes"
            count = f"{len(fleet.ranks)} ranks" if fleet.complete else f"{len(fleet.ranks)} of {fleet.world} ranks"
            mode = self._session.config.mode
            text = f"training at step {step}, {count} on {where}"
            text += f"; {self._session.why_idle}" * (mode is Mode.OBSERVE)
            output = [str(path) for path in self._session.output_files]
            folder.log_event("training", text, step=step, mode=mode.value, output=output)
        if not self._new_step_seen and step > self._start.last_old_step and not self._start.unsure:
            self._new_step_seen = True
            self._store.made_step()
            await self.close_incident(step)

    async def close_incident(self, step: int) -> None:
        """Close the open incident, if there is one: `step` is the first new step of the attempt that follows it.

        `step` is -1 if that attempt has ended well without any step.
        """
        if self._log.current is None:
            return
        attempt, job, log = self._attempt, self._session.job, self._log
        fleet, resumed_at, over = attempt.fleet, attempt.resume_point.step, self._start.started_over
        for mark in _START_MARKS:
            if at_s := fleet.mark(mark):
                log.set_time(mark, at_s)
        # Polled a few times a second: by now training may be some steps further.
        exact = fleet.first_step(resumed_at) if over < 0 else None
        first, first_at_s = exact or (step, attempt.last_sign_s)
        log.set_time("first_new_step", first_at_s)
        where = f"resumed from {resumed_from(resumed_at, first if exact else self._start.first)}"
        if over >= 0:
            where = f"step {min(step, self._store.lineage.reached)} is reached again, after a start from step {over}"
        times, reached = log.incident.times, self._start.remembered().reached
        took_s = times["first_new_step"] - times.get("fault", log.incident.opened_at_s)
        since = "the fault" if "fault" in times else "the update began"
        begun = first if exact or over >= 0 else self._start.first
        text = f"{where}, {first_step_words(first, reached, begun)}, {took_s:.1f} s after {since}"
        if first < 0:
            text = "the attempt that followed ended well; it reported no step"
        incident = log.close(f"{text[0].upper()}{text[1:]}.")
        nodes = sorted({r.node for r in fleet.alive})
        ranks = f", {len(fleet.alive)} ranks on {','.join(nodes)}" if nodes else ""
        self._session.folder.log_event(
            "resumed", f"{text}{ranks}", incident=incident.id, step=first, resume_step=resumed_at, nodes=nodes
        )
        if step > reached:
            job.claim = replace(job.claim, fruitless=0)
        # The reached step never falls: the claim may be the only place that has it.
        await job.write_claim(
            state=claim.STATE_WATCHING, incident=incident.id, times=dict(incident.times), step=max(step, reached)
        )


def first_step_words(first: int, reached: int, begun: int | None = None) -> str:
    """Return words for the first step after an incident: a step that a failed attempt has made is not new.

    `begun` is the step at which the attempt began, if `first` was only seen later; -1 if it is not known.
    """
    if first > reached:
        return f"first new step {first}"
    begun = first if begun is None else begun
    return f"{f'first step {begun}' if begun >= 0 else f'at step {first}'} ({reached} had been reached)"


def resumed_from(offered: int, first: int) -> str:
    """Return words for what an attempt went on from.

    `offered` is -1 if there was no verified checkpoint; `first` is -1 if the first new step is not exactly known.
    """
    if offered < 0 and first < 0:
        return "a step that was not seen"
    if offered < 0:
        # A Checkpointer has found its state in memory, or in a checkpoint that is not sealed yet.
        return "the beginning" if first <= 1 else "what the program found by itself"
    return f"step {offered} (verified checkpoint{'' if first <= offered + 1 else ', or something newer'})"
