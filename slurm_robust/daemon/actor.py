"""The hands: the allow-list of actions, each journalled before its call. Nothing else of the daemon changes Slurm."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

from slurm_robust.claim import Answer, ClaimError, render, split
from slurm_robust.daemon.core import Core
from slurm_robust.model import Action, ActionKind, JobRef
from slurm_robust.policy.cluster.launch_failed import launch_failed
from slurm_robust.policy.cluster.recovery_plan import QUARANTINE_FLAGS, SEAT_FLAGS
from slurm_robust.slurm.errors import SlurmError, SlurmNotFoundError, SlurmRefusedError

CRASH_VARIABLE = "SROBUST_DAEMON_CRASH_AFTER"
"""For drills and tests: a number n or an action's kind; the daemon kills itself with SIGKILL right after its n-th
action, or the first of that kind. `plan` means: right after the first plan was written, before its first action."""


class CrashPoint:
    """Counts actions, and kills this process where `CRASH_VARIABLE` says so."""

    def __init__(self, where: str | None = None) -> None:
        self.where = os.environ.get(CRASH_VARIABLE, "") if where is None else where
        self.count = 0

    def after(self, what: str) -> None:
        """Called right after `what` was done."""
        if what != "plan":
            self.count += 1
        if self.where and self.where in (what, str(self.count)):
            os.kill(os.getpid(), signal.SIGKILL)


class Actor:
    """Carries actions out, one at a time."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.crash = CrashPoint()
        self._do: dict[ActionKind, Callable[[Action], Awaitable[None]]] = {
            ActionKind.QUARANTINE: self._quarantine,
            ActionKind.RELEASE_QUARANTINE: self._delete_reservation,
            ActionKind.DRAIN: self._drain,
            ActionKind.SET_DOWN: self._set_down,
            ActionKind.RESUME: self._resume,
            ActionKind.CREATE_SEAT: self._create_seat,
            ActionKind.REQUEUE: self._requeue,
            ActionKind.POINT_JOB_AT_SEAT: self._point,
            ActionKind.LEAVE_SEAT: self._leave_seat,
            ActionKind.DELETE_SEAT: self._delete_reservation,
            ActionKind.ANSWER: self._answer,
            ActionKind.CANCEL: self._cancel,
            ActionKind.LIFT_EXCLUDE: self._point,
            ActionKind.RELEASE_JOB: self._release,
        }

    async def perform(self, key: str, action: Action) -> None:
        """Journal the action, then call Slurm. Whether it is done is for the next look to say.

        Args:
            key: The incident it belongs to.
            action: What to do; its words may come from outside, its names were checked against Slurm's own.

        Raises:
            SlurmError: Slurm could not or would not; the journal has the words.
        """
        core = self.core
        if not core.acting:
            raise AssertionError("an action in observe mode: nothing may change")
        core.journal.note_call(key, action, core.now_s())
        core.info(f"action.{action.kind.value}", f"{action.target} ({key}): {action.reason}", key=key + action.target)
        try:
            await self._do[action.kind](action)
        except SlurmError as error:
            core.journal.note_result(key, action, core.now_s(), str(error))
            core.alert(f"action.{action.kind.value}.failed", f"{action.target} ({key}): {error}", key=key)
            raise
        self.crash.after(action.kind.value)

    async def _quarantine(self, action: Action) -> None:
        minutes = self.core.config.seat.duration_min
        name = str(action.args["reservation"])
        await self._reserve(name, action.target, self.core.account, minutes, QUARANTINE_FLAGS)

    async def _create_seat(self, action: Action) -> None:
        minutes = int(action.args.get("minutes", self.core.config.seat.duration_min))
        user = str(action.args["user"])
        await self._reserve(action.target, str(action.args["nodes"]), user, minutes, SEAT_FLAGS)

    async def _reserve(self, name: str, nodes: str, user: str, minutes: int, flags: tuple[str, ...]) -> None:
        client = self.core.client
        there = self.core.world.reservations.get(name)
        if there is not None:
            # Slurm counts a duration from the reservation's start.
            age_min = math.ceil(max(0.0, self.core.now_s() - there.start_at_s) / 60)
            await self.core.call(client.update_reservation, name, nodes=nodes, duration_min=age_min + minutes)
        else:
            await self.core.call(client.create_reservation, name, nodes, (user,), minutes, flags)

    async def _delete_reservation(self, action: Action) -> None:
        name = str(action.args.get("reservation") or action.target)
        try:
            await self.core.call(self.core.client.delete_reservation, name)
        except SlurmNotFoundError:
            return

    async def _drain(self, action: Action) -> None:
        await self.core.call(self.core.client.drain, action.target, action.reason)

    async def _set_down(self, action: Action) -> None:
        await self.core.call(self.core.client.set_down, action.target, action.reason)

    async def _resume(self, action: Action) -> None:
        await self.core.call(self.core.client.resume, action.target)

    async def _requeue(self, action: Action) -> None:
        await self.core.call(self.core.client.requeue, _ref(action))

    async def _release(self, action: Action) -> None:
        # A hold of a person, put on since the last look, is theirs.
        job = await self.core.call(self.core.client.job, _ref(action))
        if job is not None and launch_failed(job):
            await self.core.call(self.core.client.release, _ref(action))

    async def _point(self, action: Action) -> None:
        changes: dict[str, Any] = {
            name: action.args[name]
            for name in ("exclude", "reservation", "time_limit_min")
            if action.args.get(name) is not None
        }
        if action.kind is ActionKind.POINT_JOB_AT_SEAT:
            changes |= {"req_nodes": "", "start_now": True}
        await self.core.call(self.core.client.update_job, _ref(action), **changes)

    async def _leave_seat(self, action: Action) -> None:
        own = str(action.args.get("reservation") or "")
        try:
            await self.core.call(self.core.client.update_job, _ref(action), reservation=own)
        except SlurmRefusedError:
            if not own:
                raise
            # The job's own reservation ended, or does not cover the nodes taken in: then it has none.
            await self.core.call(self.core.client.update_job, _ref(action), reservation="")

    async def _answer(self, action: Action) -> None:
        job = await self.core.call(self.core.client.job, _ref(action))
        if job is None:
            return
        args = action.args
        answer = Answer(
            state=str(args["state"]),
            incident=str(args.get("incident", "")),
            why=action.reason,
            road=str(args.get("road", "")),
            standby=tuple(args.get("standby", ())),
            at_s=round(self.core.now_s(), 3),
        )
        own_words = split(job.admin_comment)[0]
        try:
            text = render(answer, own_words)
        except ClaimError:
            # An administrator's own words are never cut: without room, the job's wrapper gets no answer.
            raise SlurmRefusedError(f"answer job {job.ref.address}", "its AdminComment leaves no room") from None
        await self.core.call(self.core.client.update_job, _ref(action), admin_comment=text)

    async def _cancel(self, action: Action) -> None:
        await self.core.call(self.core.client.cancel, _ref(action))


def _ref(action: Action) -> JobRef:
    """The job that an action is about; for one task of an array, the address says which."""
    return JobRef.parse(action.target)
