"""Keeps the versions of the code for the supervisor: the first snapshot, orders, and the version in force.

It never ends the training, except for an update that the user has asked for.
"""

from __future__ import annotations

import asyncio
import getpass
import os
from dataclasses import replace
from pathlib import Path

from slurm_robust.core.model import Conclusion, Failure, Plan, Road, Verdict
from slurm_robust.core.text import printable
from slurm_robust.policy.job import code_versions
from slurm_robust.policy.job.code_versions import CodeState, PendingCode
from slurm_robust.supervise.incident.incident_log import IncidentLog
from slurm_robust.supervise.launch.moved_paths import MovedPaths, why_not_movable
from slurm_robust.supervise.lineage.attempt_start import AttemptStart
from slurm_robust.supervise.lineage.lineage_store import LineageStore
from slurm_robust.supervise.outcome import ExecutePlan
from slurm_robust.supervise.session import Session
from slurm_robust.supervise.versions import code_orders
from slurm_robust.supervise.versions.code_orders import CodeOrder, OrderError
from slurm_robust.supervise.versions.snapshot import Limits, SnapshotError
from slurm_robust.supervise.versions.version_folder import (
    CodeAnswer,
    CodeReport,
    CodeVersion,
    Origin,
    VersionFolder,
    not_part,
)
from slurm_robust.supervise.watch.attempt_state import AttemptState
from slurm_robust.supervise.watch.newest_checkpoint import NewestCheckpoint
from slurm_robust.wire import own_folder

_SNAPSHOT_S = 60.0
_LOOK_S = 1.0
"""Between two looks for an order: each is a request to the storage."""
_MIB = 1 << 20
_ENDS_ATTEMPT = frozenset(Road) - {Road.STOP, Road.ALERT_ONLY}


class CodeKeeper:
    """Keeps the versions of one job's code, if the job was started with `--robust-code`."""

    def __init__(self, session: Session, store: LineageStore, log: IncidentLog) -> None:
        self._session = session
        self._store = store
        self._log = log
        self._versions = VersionFolder(session.folder.path, session.clock)
        self._answer: CodeAnswer | None = None
        self._reported = CodeState()
        self._last_refusal = ""
        self._next_look_s = 0.0
        self._checkpoint = NewestCheckpoint(session)
        self._limits = Limits(
            int(session.settings.code_max_mib * _MIB), session.settings.code_max_files, within_s=_SNAPSHOT_S
        )

    @property
    def _state(self) -> CodeState:
        return self._store.lineage.code

    # -- the first launch of this run ---------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Put the version in force that the training had, or take the first snapshot.

        If a snapshot is not possible, the ranks run from the folder itself, as they would without the option: the job
        has waited for its nodes, and training without a snapshot is better than no training.
        """
        session, channel = self._session, self._session.channel
        if not session.code_dir or channel is None or session.command is None:
            return
        if channel.running_attempt:
            if self._state.in_force:  # the supervisor before this one was killed; the training was not touched
                self._use(self._state.in_force)
            return
        pending = self._state.pending
        await self._run_from(pending.number if pending is not None else self._state.in_force)
        if session.code is not None:
            number, text = session.code.number, session.code.text(session.command)
            session.folder.log_event("code", f"the ranks run version {number} of the code: {text}", version=number)

    async def _run_from(self, wanted: int) -> None:
        """Put this version in force, or else another usable version, or else a new snapshot."""
        number = await self._usable(wanted) or await self._first_snapshot()
        if number:
            self._put_in_force(number)
        else:
            self._session.code = None

    async def _usable(self, wanted: int) -> int:
        """Return the usable version that is closest to the wanted one, at best itself; 0 if none is usable."""
        session, tried = self._session, {0}
        assert session.channel is not None
        while True:
            state = self._state
            others = (state.older, state.in_force) if wanted in state.proven else (state.in_force, state.older)
            number = next((number for number in (wanted, *others) if number not in tried), 0)
            if not number:
                return 0
            tried.add(number)
            session.channel.prepare(2 * _SNAPSHOT_S)
            try:
                damage = await asyncio.wait_for(asyncio.to_thread(self._versions.damage, number), 2 * _SNAPSHOT_S)
            except asyncio.TimeoutError:
                return number  # a storage as slow as that says nothing about the version
            if not damage:
                return number
            session.folder.log_event("code", f"VERSION {number} OF THE CODE CANNOT BE USED: {damage}")
            self._store.code_changed(self._state.lost(number))

    async def _first_snapshot(self) -> int:
        session = self._session
        assert session.command is not None
        assert session.channel is not None
        session.channel.prepare(2 * _SNAPSHOT_S)
        why, version = why_not_movable(session.command), None
        try:
            why = why or self._why_not_taken()
            if not why:
                taking = asyncio.to_thread(self._versions.take, self._origin(), self._limits)
                version = await asyncio.wait_for(taking, 2 * _SNAPSHOT_S)
        except (SnapshotError, OSError, asyncio.TimeoutError) as error:
            why = str(error) or f"it was not done within {2 * _SNAPSHOT_S:g} s"
        if version is None:
            text = f"NO SNAPSHOT OF THE CODE: {why}. The ranks run from {session.code_dir} itself"
            session.folder.log_event("code", text)
            self._store.code_changed(CodeState())
            self._report(trouble=why)
            return 0
        session.folder.log_event("code", taken_text(version, self._versions), version=version.number)
        return version.number

    def _why_not_taken(self) -> str:
        """Return why a snapshot of this folder would not do; empty if it would.

        Raises:
            OSError: the code, or the job's folder, cannot be read.
        """
        session = self._session
        assert session.command is not None
        source = Path(session.code_dir).absolute()
        if session.checkpoint_dir and Path(session.checkpoint_dir).resolve() == source.resolve():
            return "the checkpoints are saved in the folder itself: give them a folder of their own"
        open_at = own_folder.replaceable_at(str(self._versions.path))
        # If others may exchange the code itself, a snapshot beside it is no worse.
        if open_at and not own_folder.replaceable_at(str(source)):
            return f"others could exchange it, since they may write {open_at}: give it a folder with --robust-folder"
        return self._moved_to(0).why_not_imported(session.command)

    def _origin(self) -> Origin:
        session = self._session
        source = Path(session.code_dir).absolute()
        inside = source.resolve()
        # The program may name it by a relative path: that leads to the same place in each version.
        shared = [Path(session.checkpoint_dir).absolute().resolve()] if session.checkpoint_dir else []
        if shared and inside in shared[0].parents:
            shared[0].mkdir(parents=True, exist_ok=True)
        shared += [path.resolve() for path in session.output_files]
        names = tuple(str(path.relative_to(inside)) for path in shared if inside in path.parents)
        return Origin(source, _user(), names)

    # -- while it runs ------------------------------------------------------------------------------------------------

    async def poll(self, attempt: AttemptState, start: AttemptStart) -> ExecutePlan | None:
        """Read an order, if there is one; return the plan of an update that is due."""
        session = self._session
        if session.code is None:
            return None
        if self._reported != self._state:  # a version was proven meanwhile
            self._report()
        if session.clock.monotonic_s() >= self._next_look_s:
            self._next_look_s = session.clock.monotonic_s() + _LOOK_S
            await self._take_order(start)
        state = self._state
        if state.trial_until_s and session.clock.now_s() >= state.trial_until_s:
            self._store.code_changed(replace(state, trial_until_s=0.0))
        pending = state.pending
        if pending is None:
            return None
        step = await self._checkpoint.newer() if pending.when == "next-checkpoint" else -1
        why = code_versions.due(pending, session.clock.now_s(), step)
        if not why or self._would_lose(start):
            return None
        if damage := await asyncio.to_thread(self._versions.damage, pending.number):
            self._store.code_changed(replace(self._state, pending=None))
            self._refuse(damage)
            return None
        return self._update(attempt, pending, why)

    async def _take_order(self, start: AttemptStart) -> None:
        session = self._session
        try:
            order = code_orders.receive(self._versions.path, os.getuid(), session.job.name)
        except OrderError as error:
            self._refuse(str(error))
            return
        except OSError:
            return  # the storage does not answer well; the next look may
        if order is None:
            return
        refusal = await self._why_not(order, start)
        if refusal:
            self._refuse(refusal, order.at_s)
            return
        if order.number == self._state.in_force:
            self._withdraw(order)
            return
        until_s = session.clock.now_s() + order.within_s
        pending = PendingCode(order.number, order.when, until_s, printable(order.by), order.back)
        self._checkpoint = NewestCheckpoint(session)
        self._store.code_changed(replace(self._state, pending=pending))
        text = f"version {order.number} of the code is put in force {_when_text(order)}, asked for by {pending.by}"
        self._answer = CodeAnswer(order.at_s, accepted=True, text=text)
        self._report()
        known = self._versions.version(order.number)
        differs = f" ({known.changes.text})" if known is not None and known.before else ""
        session.folder.log_event("code", text + differs, version=order.number)

    def _withdraw(self, order: CodeOrder) -> None:
        """Withdraw the waiting version: the order asks for the version that is in force."""
        state = self._state
        assert state.pending is not None
        self._store.code_changed(replace(state, pending=None))
        text = f"version {state.pending.number} of the code is withdrawn by {printable(order.by)}: version "
        text += f"{state.in_force} stays in force"
        self._answer = CodeAnswer(order.at_s, accepted=True, text=text)
        self._report()
        self._session.folder.log_event("code", text, version=state.in_force)

    async def _why_not(self, order: CodeOrder, start: AttemptStart) -> str:
        """Return why an order is refused; empty if it is not."""
        session, state = self._session, self._state
        if not session.acting:
            return "observe mode: nothing is restarted"
        if order.number == state.in_force:
            return "" if state.pending is not None else f"version {order.number} is in force already"
        if damage := await asyncio.to_thread(self._versions.damage, order.number):
            return damage
        if order.when == "next-checkpoint" and not session.checkpoint_dir:
            return (
                "no checkpoint folder is known (srobust run --robust-checkpoint-dir): use --when now, or next-failure"
            )
        return "" if order.when == "next-failure" else self._would_lose(start)

    def _would_lose(self, start: AttemptStart) -> str:
        """Return why a restart in place could lose progress; empty if it could not."""
        if start.resumes() or not start.at_stake():
            return ""
        return "nothing shows that the command alone resumes from its checkpoint: use --when next-failure"

    def _refuse(self, why: str, order_at_s: float = 0.0) -> None:
        self._answer = CodeAnswer(order_at_s, accepted=False, text=why)
        if (why, order_at_s) != (self._last_refusal, 0.0):  # one that cannot be taken away is told once
            text = f"an order for another version of the code is refused: {why}; training goes on"
            self._session.folder.log_event("code", text)
            self._report()
        self._last_refusal = why

    def _update(self, attempt: AttemptState, pending: PendingCode, why: str) -> ExecutePlan:
        """Return the plan that puts the waiting version in force."""
        old = self._state.in_force
        what = f"version {pending.number} of the code replaces version {old}, {why}, asked for by {pending.by}"
        verdict = Verdict(Conclusion.NONE, f"nothing is wrong: {what}")
        plan = Plan(Road.RESTART_IN_PLACE, f"{what}: restart in place, on the same nodes", code=pending.number)
        self._log.open_update(attempt.name, plan.reason, verdict, plan)
        # These values are of an earlier plan; the daemon need not know of this plan.
        self._store.update_claim(
            road="", mode="", suspects=(), evict=(), conclusion="", grade="", why="", confidence=0.0
        )
        return ExecutePlan(verdict, plan, None)

    # -- between two attempts -----------------------------------------------------------------------------------------

    async def attempt_over(self, plan: Plan, failure: Failure | None) -> None:
        """Choose the version of the next attempt, after an attempt has ended and another one follows."""
        if self._session.code is None or plan.road not in _ENDS_ATTEMPT:
            return
        self._store.code_changed(self._state.failed(failure))
        pending = self._state.pending
        old = self._state.in_force
        wanted = plan.code or (pending.number if pending is not None else old)
        if wanted == old and self._versions.snapshot(old).is_dir():
            return
        await self._run_from(wanted)
        if self._state.in_force != old:
            number = self._state.in_force
            text = f"version {number} of the code replaces version {old}"
            self._session.folder.log_event("code", text, version=number)

    def _put_in_force(self, number: int) -> None:
        state = self._state
        pending = state.pending if state.pending is not None and state.pending.number == number else None
        if number != state.in_force:
            # A change that nobody has asked for takes a version back.
            back = bool(state.in_force) and (pending.back if pending is not None else True)
            self._store.code_changed(state.switched(number, back=back, now_s=self._session.clock.now_s()))
        self._use(number)
        self._report()

    def _use(self, number: int) -> None:
        self._session.code = self._moved_to(number)

    def _moved_to(self, number: int) -> MovedPaths:
        session = self._session
        source = Path(session.code_dir).absolute()
        # The shell's own name for the working directory may go through a link.
        named = os.path.normpath(os.path.join(session.environment.get("PWD", ""), session.code_dir))  # noqa: PTH118
        work_dir = session.environment.get("SLURM_WORKING_DIR") or str(Path.cwd())
        names = tuple(dict.fromkeys((str(source.resolve()), str(source), named)))
        snapshot = self._versions.snapshot(number).absolute()
        return MovedPaths(number, tuple(name for name in names if name.startswith("/")), snapshot, work_dir)

    def _report(self, trouble: str = "") -> None:
        self._reported = self._state
        job, folder, state = self._session.job.name, self._session.folder, self._state
        try:
            origin = self._origin()
            # A folder whose name is not UTF-8 cannot have versions.
            source, shared = os.fsencode(origin.source.resolve()).decode("utf-8", "replace"), origin.own_shared
            self._versions.write_report(CodeReport(job, source, state, self._limits, shared, self._answer, trouble))
        except OSError as error:
            folder.log_event("note", f"{self._versions.path}: {error}; training goes on")


def taken_text(version: CodeVersion, versions: VersionFolder) -> str:
    """Return words for what a snapshot contains, and what it does not."""
    commit = f", git {version.commit} and what differs from it" if version.commit else ""
    size = f"{version.files} files, {version.size_bytes / _MIB:.1f} MiB{commit}"
    text = f"version {version.number} of the code was taken from {version.source}: {size}"
    rest = not_part(version)
    return f"{text}, in {versions.snapshot(version.number)}" + (f"; {rest}" if rest else "")


def _when_text(order: CodeOrder) -> str:
    at_most = f"with the next failure at the latest, and within {order.within_s / 3600:g} h"
    if order.when == "now":
        return "now"
    if order.when == "next-checkpoint":
        return f"right after the next verified checkpoint, {at_most}"
    return f"with the next failure, and within {order.within_s / 3600:g} h"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"
