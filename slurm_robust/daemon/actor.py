"""The only part of the daemon that changes Slurm: an allow-list of actions, each journalled before its call.

Actions of an incident, and single ones such as the release of a held job, keep their rows until the journal forgets
them. Standing actions (drain permits, standby pools, checks of standby nodes) are repeated as long as the daemon runs:
each replaces the row of its key, so that the journal does not grow, and the daemon's log in the journal keeps the
history.
"""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from slurm_robust.core.model import Action, ActionKind, JobRef
from slurm_robust.core.text import shortened
from slurm_robust.daemon.context import DaemonContext
from slurm_robust.daemon.lease import Lease
from slurm_robust.daemon.own_jobs import RESERVATIONS, OwnJobs
from slurm_robust.daemon.site_command import run_command
from slurm_robust.marks.claim import ClaimAnswer, ClaimError, render, split
from slurm_robust.marks.remedy import untagged
from slurm_robust.policy.cluster.launch_failed import launch_failed
from slurm_robust.policy.cluster.recovery_plan import MAX_DRAIN_REASON_CHARS, QUARANTINE_FLAGS, SEAT_FLAGS
from slurm_robust.slurm.errors import SlurmError, SlurmNotFoundError, SlurmRefusedError

CRASH_VARIABLE = "SROBUST_DAEMON_CRASH_AFTER"
"""The variable for drills and tests: a number n or an action's kind. The daemon kills itself with SIGKILL right after
its n-th action (standing actions not counted), or the first action of that kind. `plan`: right after it wrote its first
plan."""

STANDING = (ActionKind.DRAIN_PERMIT, ActionKind.KEEP_STANDBY, ActionKind.STANDBY_CHECK)
SOON_S = 90.0
"""A reservation that ends within this time is left to its end."""
PAIR_FLAGS = ("OVERLAP", "NO_HOLD_JOBS_AFTER_END")
STANDBY_FLAGS = ("OVERLAP",)
"""Pools hold idle nodes only, so running jobs need not be ignored; seats overlap the pools."""


class CrashPoint:
    """Counts actions, and kills this process where `CRASH_VARIABLE` asks for it."""

    def __init__(self, where: str | None = None) -> None:
        self.where = os.environ.get(CRASH_VARIABLE, "") if where is None else where
        self.count = 0

    def after(self, what: str) -> None:
        """Called right after `what` was done."""
        if what != "plan" and what not in STANDING:
            self.count += 1
        if self.where and self.where in (what, str(self.count)):
            os.kill(os.getpid(), signal.SIGKILL)


class Actor:
    """Carries actions out, one at a time."""

    def __init__(self, context: DaemonContext, lease: Lease | None = None) -> None:
        self.context, self._lease = context, lease
        self.crash = CrashPoint()
        self.own_jobs = OwnJobs(context)
        call, client = context.call, context.client
        self._do: dict[ActionKind, Callable[[Action], Awaitable[JobRef | None]]] = {
            ActionKind.QUARANTINE: self._quarantine,
            ActionKind.RELEASE_QUARANTINE: self._delete_reservation,
            ActionKind.DRAIN: lambda a: call(client.drain, a.target, a.reason),
            ActionKind.SET_DOWN: lambda a: call(client.set_down, a.target, a.reason),
            ActionKind.RESUME: lambda a: call(client.resume, a.target),
            ActionKind.CREATE_SEAT: self._create_seat,
            ActionKind.REQUEUE: self._requeue,
            ActionKind.POINT_JOB_AT_SEAT: self._point,
            ActionKind.LEAVE_SEAT: self._leave_seat,
            ActionKind.DELETE_SEAT: self._delete_reservation,
            ActionKind.ANSWER: self._answer,
            ActionKind.CANCEL: lambda a: call(client.cancel, _ref(a)),
            ActionKind.LIFT_EXCLUDE: self._point,
            ActionKind.RELEASE_JOB: self._release,
            ActionKind.RECHECK: self._submit_check,
            ActionKind.STANDBY_CHECK: self._submit_check,
            ActionKind.KEEP_STANDBY: self._keep_standby,
            ActionKind.DRAIN_PERMIT: lambda a: call(client.set_node_comment, a.target, str(a.args["comment"])),
            ActionKind.CLEAR_FAULT: lambda a: call(client.set_node_extra, a.target, str(a.args["extra"])),
            ActionKind.DELETE_ORPHAN: self._delete_reservation,
            ActionKind.HOLD_PAIR: self._hold_pair,
            ActionKind.TEST_PAIR: self._submit_check,
            ActionKind.RELEASE_PAIR: self._delete_reservation,
            ActionKind.REBOOT: lambda a: call(client.reboot, a.target, a.reason),
            ActionKind.REPAIR_COMMAND: self._repair_command,
        }

    async def perform(self, key: str, action: Action) -> JobRef | None:
        """Write the action to the journal, then call Slurm. Only a later reading of Slurm shows whether it is done.

        Its `key` is the incident that it belongs to, or a name of its own. Its reason may come from outside; its names
        were checked against Slurm's own. Returns the job that was submitted, for actions that submit one.

        Raises:
            StandingByError: another daemon acts; nothing is written down.
            SlurmError: Slurm could not or would not; the journal has its message.
        """
        context = self.context
        if not context.acting:
            raise AssertionError("an action in observe mode: nothing may change")
        if self._lease is not None:
            await self._lease.check()
        if action.kind is ActionKind.DRAIN and (cause := context.cause_of(action.target)):
            # Without a remedy: a reboot does not mend a switch.
            reason = shortened(untagged(action.reason), MAX_DRAIN_REASON_CHARS - len(cause) - 2)
            action = replace(action, reason=f"{reason}; {cause}")
        kind, standing = action.kind, action.kind in STANDING
        context.journal.note_call(key, action, context.now_s(), standing=standing)
        # A standing action has many targets, and must not take the log's rate from others.
        log_key = key if standing else key + action.target
        context.info(f"action.{kind.value}", f"{action.target} ({key}): {action.reason}", key=log_key)
        try:
            submitted = await self._do[kind](action)
        except SlurmError as error:
            context.journal.note_result(key, action, context.now_s(), str(error))
            context.alert(f"action.{kind.value}.failed", f"{action.target} ({key}): {error}", key=key)
            raise
        self.crash.after(kind.value)
        return submitted

    async def _quarantine(self, action: Action) -> None:
        minutes = int(action.args.get("minutes", self.context.config.seat.duration_min))
        name = str(action.args["reservation"])
        await self._reserve(name, action.target, self.context.account, minutes, QUARANTINE_FLAGS)

    async def _hold_pair(self, action: Action) -> None:
        """Reserve a pair of nodes; refused if a job has come to one of them since the nodes were last read."""
        name, minutes = str(action.args["reservation"]), int(action.args["minutes"])
        await self._reserve(name, action.target, self.context.account, minutes, PAIR_FLAGS)

    async def _create_seat(self, action: Action) -> None:
        """Create a seat that is the daemon's own at first: Slurm would let any job of the user in.

        `_point` lets the user in.
        """
        minutes = int(action.args.get("minutes", self.context.config.seat.duration_min))
        await self._reserve(action.target, str(action.args["nodes"]), self.context.account, minutes, SEAT_FLAGS)

    async def _reserve(self, name: str, nodes: str, user: str, minutes: int, flags: tuple[str, ...]) -> None:
        client = self.context.client
        there = self.context.readings.reservations.get(name)
        if there is not None:
            # Slurm counts a duration from the reservation's start. An open seat has a later end, which stays: when it
            # ends, Slurm ends a job that is still in it.
            now_s = self.context.now_s()
            age_min = math.ceil(max(0.0, now_s - there.start_at_s) / 60)
            until_min = age_min + minutes if there.end_at_s <= now_s + minutes * 60 else None
            await self.context.call(client.update_reservation, name, nodes=nodes, duration_min=until_min)
        else:
            await self._create(name, nodes, user, minutes, flags)

    async def _create(self, name: str, nodes: str, user: str, minutes: int, flags: tuple[str, ...]) -> None:
        """Create a reservation; where Slurm refuses the account, it is not asked again at once."""
        own = self.own_jobs
        own.check(RESERVATIONS)
        try:
            await self.context.call(self.context.client.create_reservation, name, nodes, (user,), minutes, flags)
        except SlurmRefusedError as error:
            if own.of_account(error.text):
                own.refused(RESERVATIONS, error.text)
            raise
        own.worked(RESERVATIONS)

    async def _delete_reservation(self, action: Action) -> None:
        name = str(action.args.get("reservation") or action.target)
        context, client = self.context, self.context.client
        if action.args.get("close"):
            await context.call(client.expire_reservation, name, (context.account,))
            return
        try:
            await context.call(client.delete_reservation, name)
        except SlurmNotFoundError:
            return
        except SlurmRefusedError:
            there = context.readings.reservations.get(name)
            lasts = there is not None and there.end_at_s > context.now_s() + SOON_S
            if action.kind is ActionKind.DELETE_SEAT and lasts:
                # Something that we do not see is in it. No more jobs come in, none is ended, and it ends soon.
                # Its end is set once: each attempt to delete it would put that off.
                await context.call(client.expire_reservation, name, (context.account,))
            raise

    async def _submit_check(self, action: Action) -> JobRef:
        args = [str(word) for word in action.args["sbatch"]]
        try:
            return await self.context.call(self.context.client.submit, args, action.args["script"])
        except SlurmRefusedError as error:
            # A partition that the account may not use, a limit: it would be refused again in a second.
            where = next((word.partition("=")[2] for word in args if word.startswith("--partition=")), "")
            self.own_jobs.refused(where, error.text or error.what)
            raise

    async def _repair_command(self, action: Action) -> None:
        """Run the site's own command for a node: the only action without a call to Slurm."""
        await run_command([str(word) for word in action.args["argv"]], float(action.args["timeout_s"]))

    async def _keep_standby(self, action: Action) -> None:
        context, client, name = self.context, self.context.client, action.target
        nodes, minutes = action.args.get("nodes"), action.args.get("minutes")
        if action.args.get("create"):
            await self._create(name, str(nodes), context.account, int(minutes or 0), STANDBY_FLAGS)
        elif nodes is None and minutes is None:
            await context.call(client.delete_reservation, name)
        else:
            try:
                await context.call(client.update_reservation, name, nodes=nodes, duration_min=minutes)
            except SlurmRefusedError:
                if nodes is None:
                    raise
                # A pool made by hand with REPLACE flags refuses a list of nodes: it is deleted, and created again.
                await context.call(client.delete_reservation, name)

    async def _release(self, action: Action) -> None:
        # A person may have put a hold on the job since the last reading: that one stays.
        job = await self.context.call(self.context.client.job, _ref(action))
        if job is not None and launch_failed(job):
            await self.context.call(self.context.client.release, _ref(action))

    async def _requeue(self, action: Action) -> None:
        """Requeue a job, with its placement if the action has one; if Slurm refuses that, the job is placed later."""
        context, args = self.context, action.args
        if "start_in_s" not in args:
            await context.call(context.client.requeue, _ref(action))
            return
        where, in_s = {**_placement(action), "req_nodes": ""}, int(args["start_in_s"])
        if not await context.call(context.client.requeue_and_place, _ref(action), start_in_s=in_s, **where):
            text = f"{action.target}: Slurm took the requeue alone; the job is pointed at its seat as soon as it can be"
            context.alert("requeue.not_placed", text, key=action.target)

    async def _point(self, action: Action) -> None:
        context, changes, user = self.context, _placement(action), str(action.args.get("user") or "")
        if action.kind is ActionKind.POINT_JOB_AT_SEAT:
            in_s = action.args.get("start_in_s")
            changes |= {"req_nodes": "", **({"start_now": True} if in_s is None else {"start_in_s": int(in_s)})}
        try:
            if user and changes.get("reservation"):
                until_s = float(action.args.get("open_until_s") or math.inf)
                await context.call(
                    context.client.start_in_reservation, _ref(action), user, until_s - context.now_s(), **changes
                )
            else:
                await context.call(context.client.update_job, _ref(action), **changes)
        except SlurmRefusedError:
            # Its start time may have come since it was read: the next reading shows where it runs now.
            job = await context.call(context.client.job, _ref(action))
            if job is None or job.state != "RUNNING":
                raise

    async def _leave_seat(self, action: Action) -> None:
        own = str(action.args.get("reservation") or "")
        if action.args.get("rest"):
            await self.context.call(self.context.client.leave_reservation, _ref(action))
            return
        try:
            await self.context.call(self.context.client.update_job, _ref(action), reservation=own)
        except SlurmRefusedError:
            if not own:
                raise
            # The job's own reservation ended, or does not contain the standby nodes: the job goes on without one.
            await self.context.call(self.context.client.update_job, _ref(action), reservation="")

    async def _answer(self, action: Action) -> None:
        job = await self.context.call(self.context.client.job, _ref(action))
        if job is None:
            return
        args = action.args
        answer = ClaimAnswer(
            state=str(args["state"]),
            incident=str(args.get("incident", "")),
            why=action.reason,
            road=str(args.get("road", "")),
            standby=tuple(args.get("standby", ())),
            at_s=round(self.context.now_s(), 3),
        )
        admins_text = split(job.admin_comment)[0]
        try:
            text = render(answer, admins_text)
        except ClaimError:
            # An administrator's text is never cut: if it leaves no space, the job's wrapper gets no answer.
            raise SlurmRefusedError(f"answer job {job.ref.address}", "its AdminComment leaves no space") from None
        await self.context.call(self.context.client.update_job, _ref(action), admin_comment=text)


def _placement(action: Action) -> dict[str, Any]:
    names = ("exclude", "reservation", "time_limit_min")
    return {name: action.args[name] for name in names if action.args.get(name) is not None}


def _ref(action: Action) -> JobRef:
    """Return the job that an action is about; the address of one task of an array names the task."""
    return JobRef.parse(action.target)
