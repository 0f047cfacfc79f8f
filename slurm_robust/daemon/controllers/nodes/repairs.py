"""Repairs drained nodes of ours whose fault has a remedy: bounded tries, each followed by the full check.

What to do next is decided in `policy.cluster.repair`; here it is done, through the actor. The full check itself is the
quarantine's.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping

from slurm_robust.core.model import REASON_PREFIX, Action, ActionKind
from slurm_robust.daemon.actor import Actor
from slurm_robust.daemon.context import DaemonContext
from slurm_robust.daemon.controllers.recovery.recoveries import Recoveries
from slurm_robust.daemon.store.node_ledger import NodeLedger, Quarantine
from slurm_robust.daemon.store.repair_ledger import RepairLedger
from slurm_robust.marks.drain_permit import parse
from slurm_robust.marks.remedy import Remedy
from slurm_robust.policy.cluster.node_states import drained_by_us, quarantine_name
from slurm_robust.policy.cluster.repair import (
    Move,
    Prospect,
    RepairStep,
    RepairTry,
    Scene,
    Site,
    next_move,
    prospect,
)
from slurm_robust.slurm.client import Node
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.slurm.values import nothing

UNREPAIRED_MIN = 1440
"""A node that is resumed with its fault is held at least so long: the daemon may die before the job that repairs it."""
RETRY_S = 30.0
"""The time between two tries of a call that Slurm refused."""


class Repairs:
    """Begins repairs and brings those under way forward, at each poll."""

    def __init__(
        self, context: DaemonContext, actor: Actor, recoveries: Recoveries, nodes: NodeLedger, ledger: RepairLedger
    ) -> None:
        self.context, self.actor, self.recoveries, self.nodes, self.ledger = context, actor, recoveries, nodes, ledger
        self.breaker = recoveries.breaker
        self.config = context.config.repair
        self.available: frozenset[Remedy] = frozenset()
        self._commands: dict[int, asyncio.Task[object]] = {}
        self._not_before_s: dict[int, float] = {}
        self._do: dict[RepairStep, Callable[[RepairTry, Move], Awaitable[None]]] = {
            RepairStep.HOLD: self._hold,
            RepairStep.REBOOT: self._reboot,
            RepairStep.COMMAND: self._command,
            RepairStep.DONE: self._done,
            RepairStep.RESUME: self._resume,
            RepairStep.CHECK: self._check,
            RepairStep.DECIDE: self._decide,
            RepairStep.DRAIN: self._drain,
            RepairStep.RELEASE: self._release,
            RepairStep.END: self._end,
        }

    @property
    def busy(self) -> bool:
        """True while a repair is under way."""
        return bool(self.ledger.open())

    def restart_timers(self) -> None:
        """Wait anew, since the clock was set back."""
        self._not_before_s.clear()
        self.ledger.restart_timers(self.context.now_s())

    def learn(self, settings: Mapping[str, str]) -> None:
        """Learn which remedies can be carried out here, by slurmctld's slurm.conf; say which cannot."""
        wanted = {Remedy(name) for name in self.config.remedies}
        lacking: dict[Remedy, str] = {}
        if not self.config.command:
            if nothing(settings.get("RebootProgram", "")):
                lacking[Remedy.REBOOT] = "slurm.conf has no RebootProgram"
            if self.context.account != "root":
                lacking[Remedy.GPU_RESET] = f"a GPU reset needs root, and the daemon runs as {self.context.account}"
        self.available = frozenset(wanted - set(lacking))
        if self.config.enabled:
            for remedy in sorted(wanted & set(lacking)):
                self.context.alert("repairs.unavailable", f"{remedy.words} is not available: {lacking[remedy]}")

    async def tick(self) -> None:
        """Bring every repair forward, then begin what may begin; an error with one does not delay the others."""
        if self.context.acting:
            for t in self.ledger.open():
                with self.context.guarded("repairs.waits", t.node, key=t.node):
                    await self._advance(t)
        if self.config.enabled:
            self._begin()

    # --- beginning

    def _begin(self) -> None:
        under_way = {t.node for t in self.ledger.open()}
        # A node that a job is leaving is not to come back before the job runs elsewhere.
        left = {name for f in self.recoveries.open.values() for name in f.recovery.bad}
        taken = under_way | left | {q.node for q in self.nodes.quarantines()}
        drained, since_s = self.nodes.open_drains(), self.nodes.open_drain_times()
        for name in sorted(drained, key=lambda n: (since_s[n], n)):
            node = self.context.readings.nodes.get(name)
            if node is None or name in taken or not drained_by_us(node):
                continue
            past = self.ledger.of(name)
            chance = prospect(node, drained[name], since_s[name], past, self._site())
            if chance is None:
                continue
            if chance.remedy is None:
                if chance.hopeless:
                    self._give_up(node, chance, tried=bool(past))
            elif not self.context.acting:
                self._would(node, chance.remedy)
            elif self.breaker.why_open:
                text = f"{name}: the breaker is open, nothing is repaired"
                if not self.ledger.announced(name, text):
                    self.context.info("repairs.waits", text)
            elif len(under_way) < self.config.max_at_once:
                under_way.add(name)
                self._write(node, chance.remedy, chance.nth)

    def _site(self) -> Site:
        context = self.context
        accounts = frozenset((context.account, "root"))
        return Site(self.config, self.available, accounts, context.readings.busy, context.now_s())

    def _write(self, node: Node, remedy: Remedy, nth: int) -> None:
        begun = RepairTry(0, node.name, remedy, nth, node.reason, self.context.now_s(), node.boot_at_s)
        t = self.ledger.begin(begun)
        self.context.info("repairs.begun", f"{t.node}, {t.tells(self.config)}, because of: {t.evidence}")

    def _would(self, node: Node, remedy: Remedy) -> None:
        text = f"observe: would repair {node.name} ({remedy.words}): {node.reason}"
        if not self.ledger.announced(node.name, text):
            self.context.info("repairs.observed", text)

    def _give_up(self, node: Node, chance: Prospect, *, tried: bool) -> None:
        """Say once for each drain that a person has to look; an alert where that is news to the drain's own."""
        text = f"{node.name}: {chance.why}; a person has to look: {node.reason}"
        if not self.ledger.announced(node.name, text):
            (self.context.alert if tried else self.context.info)("repairs.given_up", text)

    # --- the steps of a try

    async def _advance(self, t: RepairTry) -> None:
        now_s = self.context.now_s()
        if now_s < self._not_before_s.get(t.number, 0.0):
            return
        node = self.context.readings.nodes.get(t.node)
        move = next_move(t, node, self._scene(t, node))
        if move.step is RepairStep.WAIT:
            return
        try:
            await self._do[move.step](t, move)
        except SlurmError:
            self._not_before_s[t.number] = now_s + RETRY_S
            raise

    def _scene(self, t: RepairTry, node: Node | None) -> Scene:
        context, now_s = self.context, self.context.now_s()
        held = context.readings.reservations.get(quarantine_name(t.node))
        # After the outcome it is only deleted; before, it has to last.
        least_s = UNREPAIRED_MIN * 30 if self._returns_unrepaired(t) else context.config.seat.duration_min * 30
        lasts = held is not None and (bool(t.outcome) or held.end_at_s - now_s >= least_s)
        return Scene(
            self.config,
            now_s,
            reserved=lasts,
            quarantined=any(q.node == t.node for q in self.nodes.quarantines()),
            permitted=node is not None and parse(node.comment, now_s) is not None,
            command=self._command_state(t),
            busy=t.node in context.readings.busy,
        )

    def _command_state(self, t: RepairTry) -> str:
        task = self._commands.get(t.number)
        if task is None:
            return ""
        if not task.done():
            return "running"
        error = None if task.cancelled() else task.exception()
        return f"{error or type(error).__name__}" if error is not None else "done"

    def _returns_unrepaired(self, t: RepairTry) -> bool:
        """True while the next steps resume a node that still has its fault, for the job that is to remove it."""
        return t.remedy is Remedy.GPU_RESET and not self.config.command and t.checked_at_s is None

    async def _hold(self, t: RepairTry, move: Move) -> None:
        context, name = self.context, quarantine_name(t.node)
        minutes = math.ceil(self.config.timeout_s / 60) + context.config.seat.duration_min
        if self._returns_unrepaired(t):
            minutes = max(minutes, UNREPAIRED_MIN)
        reason = f"{REASON_PREFIX} repair, {t.tells(self.config)}"
        action = Action(ActionKind.QUARANTINE, t.node, reason, {"reservation": name, "minutes": minutes})
        await self.actor.perform(t.key, action)
        await context.read_reservations()
        if name in context.readings.reservations:
            context.journal.note_result(t.key, action, context.now_s())

    def _acted(self, t: RepairTry) -> None:
        """Write down that the remedy is asked for, before it is: the time limit begins."""
        if t.acted_at_s is None:
            self.ledger.note(t, acted_at_s=self.context.now_s())

    async def _reboot(self, t: RepairTry, move: Move) -> None:
        self._acted(t)
        await self.actor.perform(t.key, Action(ActionKind.REBOOT, t.node, t.reason(self.config)))
        self.ledger.note(t, asked_at_s=self.context.now_s())
        await self.context.read_nodes()

    async def _command(self, t: RepairTry, move: Move) -> None:
        self._acted(t)
        argv = [word.replace("%n", t.node).replace("%r", t.remedy.value) for word in self.config.command]
        args = {"argv": argv, "timeout_s": self.config.timeout_s}
        action = Action(ActionKind.REPAIR_COMMAND, t.node, t.reason(self.config), args)
        # Beside the daemon's other work: it may take half an hour.
        self._commands[t.number] = asyncio.create_task(self.actor.perform(t.key, action))

    async def _done(self, t: RepairTry, move: Move) -> None:
        context = self.context
        self.ledger.note(t, done_at_s=context.now_s())
        kind = ActionKind.REPAIR_COMMAND if self.config.command else ActionKind.REBOOT
        context.journal.note_result(t.key, Action(kind, t.node, ""), context.now_s())
        if kind is ActionKind.REPAIR_COMMAND or t.remedy is Remedy.REBOOT:
            text = f"{t.node}, {t.tells(self.config)}: done, its full check comes next"
            context.info("repairs.done", f"{text}{'; ' if move.why else ''}{move.why}")

    async def _resume(self, t: RepairTry, move: Move) -> None:
        action = Action(ActionKind.RESUME, t.node, move.why)
        await self.actor.perform(t.key, action)
        # The breaker would say that the node is back in service.
        self.nodes.drain_ended(t.node, self.context.now_s())
        await self.context.read_nodes()
        self.context.journal.note_result(t.key, action, self.context.now_s())

    async def _check(self, t: RepairTry, move: Move) -> None:
        now_s = self.context.now_s()
        self.nodes.drain_ended(t.node, now_s)
        why = f"repair, {t.tells(self.config)}"
        with self.context.journal.transaction():
            self.nodes.quarantine(Quarantine(t.node, t.key, 0, "", why, now_s, now_s))
            self.ledger.note(t, checked_at_s=now_s)

    async def _decide(self, t: RepairTry, move: Move) -> None:
        self.ledger.note(t, outcome=move.outcome, why=move.why)
        text = f"{t.node}, {t.tells(self.config)}: {move.why}"
        if move.outcome == "passed":
            self.context.info("repairs.passed", f"{text}; back in service")
        else:
            self.context.alert(f"repairs.{move.outcome}", text)

    async def _drain(self, t: RepairTry, move: Move) -> None:
        context = self.context
        action = Action(ActionKind.DRAIN, t.node, move.why)
        await self.actor.perform(t.key, action)
        await context.read_nodes()
        node = context.readings.nodes.get(t.node)
        if node is not None and node.drained:
            context.journal.note_result(t.key, action, context.now_s())
            # As Slurm shows it: a reason that differs from this one is a person's.
            self.nodes.drained_again(t.node, context.now_s(), node.reason)

    async def _release(self, t: RepairTry, move: Move) -> None:
        context, name = self.context, quarantine_name(t.node)
        action = Action(ActionKind.RELEASE_QUARANTINE, name, move.why)
        await self.actor.perform(t.key, action)
        await context.read_reservations()
        if name not in context.readings.reservations:
            context.journal.note_result(t.key, action, context.now_s())

    async def _end(self, t: RepairTry, move: Move) -> None:
        self.ledger.note(t, ended_at_s=self.context.now_s())
        self._commands.pop(t.number, None)
        self._not_before_s.pop(t.number, None)

    # --- for people

    def shown(self) -> dict[str, dict[str, object]]:
        """Return the repairs under way, by node."""
        return {
            t.node: {
                "remedy": t.remedy.value,
                "try": t.nth,
                "of": self.config.max_tries,
                "doing": doing(t),
                "since_s": t.checked_at_s or t.done_at_s or t.acted_at_s or t.begun_at_s,
                "evidence": t.evidence,
            }
            for t in self.ledger.open()
        }


def doing(t: RepairTry) -> str:
    """Return the present action of this try, in a word or two."""
    if t.outcome:
        return f"{t.outcome}, tidying up"
    if t.checked_at_s is not None:
        return "GPU reset, then full check" if t.remedy is Remedy.GPU_RESET else "full check"
    if t.done_at_s is not None:
        return "waiting for its full check"
    if t.acted_at_s is not None:
        return "rebooting" if t.remedy is Remedy.REBOOT else "resetting its GPUs"
    return "begun"
