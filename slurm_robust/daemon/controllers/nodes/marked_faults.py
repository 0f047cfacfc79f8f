"""Reads the fault markers of nodes: brings the jobs there back, and drains the node; a storm is one alert.

Only the journal keeps the progress of this work: a marker stays until its node is drained and its jobs have left, and
each reading of the nodes decides anew what is missing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from slurm_robust.core.model import REASON_PREFIX, Action, ActionKind, SignalKind
from slurm_robust.core.text import shortened
from slurm_robust.daemon.actor import Actor
from slurm_robust.daemon.context import DaemonContext
from slurm_robust.daemon.controllers.breaker import Breaker
from slurm_robust.daemon.controllers.nodes import full_check
from slurm_robust.daemon.controllers.recovery import unasked
from slurm_robust.daemon.controllers.recovery.incident_rows import incident_key
from slurm_robust.daemon.controllers.recovery.node_failures import NodeFailures
from slurm_robust.marks import fault_marker
from slurm_robust.marks.fault_marker import FaultMarker
from slurm_robust.marks.node_findings import about_rdma
from slurm_robust.marks.remedy import named, tagged
from slurm_robust.policy.cluster.node_faults import (
    GATHER_MORE_S,
    GATHER_S,
    PLAN_EARLIER_S,
    SUPERVISOR_S,
    JobThere,
    SeenFault,
    Storm,
    concerns,
    grown,
    in_question,
    in_storm,
    near,
    next_step,
    our_drains,
)
from slurm_robust.policy.cluster.node_states import foreign
from slurm_robust.policy.cluster.recovery_plan import MAX_DRAIN_REASON_CHARS, NODE_FAULT
from slurm_robust.slurm import topology
from slurm_robust.slurm.client import Job, Node
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.slurm.values import fold

STORM_KEY = "fault_storm"
JOBS_AGE_S = 0.5
"""A reading of the jobs that is older is made again, before anything follows from it."""
WATCHFUL_S = SUPERVISOR_S + 10.0
"""The time for which a marker makes the daemon read the nodes more often."""
LOOK_AGAIN_S = 30.0
"""A marker that has to wait for a person, which was said, is looked at so often."""
CLEAR_AGAIN_S = 10.0
"""The time between two tries to remove a marker."""
LATE_TOLD_S = 10.0
"""Nodes whose fault comes after a storm are named in an alert, this often at most."""


class MarkedFaults:
    """Compares each reading of the nodes with the jobs on nodes with a fault marker."""

    def __init__(self, context: DaemonContext, actor: Actor, breaker: Breaker, failures: NodeFailures) -> None:
        self.context, self.actor, self.breaker, self.failures = context, actor, breaker, failures
        self.intake, self.recoveries = failures.intake, failures.recoveries
        self._since_s: dict[str, float] = {}
        """Since when a node has any fault marker."""
        self._seen: dict[str, SeenFault] = {}
        self._announced: set[str] = set()
        self._not_before_s: dict[str, float] = {}
        self._gpus: dict[tuple[int, int, str], frozenset[int] | None] = {}
        self._late: dict[str, str] = {}
        """Nodes whose fault was counted to a storm, and that no person was told of yet, with the fault."""
        self._late_told_s = 0.0

    @property
    def suspicious(self) -> bool:
        """True while a marker is new: the nodes are then read more often."""
        now_s = self.context.now_s()
        return any(now_s - since_s < WATCHFUL_S for since_s in self._since_s.values())

    def restart_timers(self) -> None:
        """Wait anew, since the clock was set back."""
        self._since_s.clear()
        self._seen.clear()
        self._not_before_s.clear()
        self._late_told_s = 0.0

    async def tick(self) -> None:
        """Handle marked faults after each reading of the nodes; an error with one node does not delay the others."""
        context, now_s = self.context, self.context.now_s()
        self._tell_late(now_s)
        marked = context.picture.marked
        fresh = self._fresh(marked, now_s)
        self._not_before_s = {name: at_s for name, at_s in self._not_before_s.items() if name in marked}
        if not marked:
            self._announced.clear()
            return
        self._gpus = {key: gpus for key, gpus in self._gpus.items() if key[0] in context.readings.jobs}
        if old := sorted(set(marked) - set(fresh)):
            await self._clear(old, "fault_markers", "too old, of another boot, or not to be read")
        earlier = self._earlier()
        storm = await self._storm(fresh, earlier)
        alone = {name: fresh[name] for name in sorted(set(fresh) - storm)}
        gone = {**our_drains(context.picture.ours), **(earlier.faults if earlier is not None else {})}
        for name in alone:
            if now_s < self._not_before_s.get(name, 0.0):
                continue
            # Of a leaf switch that dies, the nodes tell within seconds of each other.
            more = about_rdma(fresh[name].marker.kind) or near(name, fresh, gone)
            gather_s = GATHER_MORE_S if more else GATHER_S
            with context.guarded("fault.waits", name, key=name):
                await self._handle(name, alone, gather_s)

    def _fresh(self, marked: Mapping[str, Node], now_s: float) -> dict[str, SeenFault]:
        """Return the markers that may be acted on, and since when they are known."""
        seen: dict[str, SeenFault] = {}
        for name, node in marked.items():
            marker, known = fault_marker.parse(node.extra), self._seen.get(name)
            if marker is None:
                continue
            if known is None or known.marker != marker:
                known = SeenFault(marker, now_s)
                self._not_before_s.pop(name, None)
            seen[name] = known
        self._seen = seen
        fresh = {
            name: fault
            for name, fault in seen.items()
            if fault_marker.fresh(fault.marker, now_s, marked[name].boot_at_s, fault.seen_s)
        }
        self._since_s = {name: self._since_s.get(name, now_s) for name in fresh}
        return fresh

    # --- storms

    def _earlier(self) -> Storm | None:
        """Return the last storm, from the journal."""
        known = json.loads(self.context.journal.get(STORM_KEY) or "null")
        if not isinstance(known, dict):
            return None
        return Storm(known["last_at_s"], frozenset(known["kinds"]), frozenset(known["partitions"]), known["faults"])

    def storm_shown(self) -> dict[str, Any] | None:
        """Return the last storm for `srobust status`; None if there was none."""
        storm = self._earlier()
        if storm is None:
            return None
        return {"at_s": storm.last_at_s, "kinds": sorted(storm.kinds), "nodes": sorted(storm.faults)}

    async def _storm(self, faults: Mapping[str, SeenFault], earlier: Storm | None) -> frozenset[str]:
        """Announce a storm, and remove its markers; returns the nodes that are part of it."""
        context, nodes = self.context, self.context.readings.nodes
        found = in_storm(faults, nodes, context.config.breaker, earlier)
        names = found.own | found.late
        if not names:
            return names
        storm = grown(earlier, found, faults, nodes)
        if storm != earlier:
            kept = {"last_at_s": storm.last_at_s, "kinds": sorted(storm.kinds), "faults": dict(storm.faults)}
            kept["partitions"] = sorted(storm.partitions)
            if found.own:
                first = faults[min(found.own)].marker
                # A switch takes links away, and no GPU off its bus.
                links = all(about_rdma(faults[name].marker.kind) for name in found.own)
                switches = await asyncio.to_thread(topology.read, context.config.slurm.conf) if links else ()
                leaf = topology.shared(found.own, switches)
                cause = f"they hang on one switch, that of {fold(leaf)}: look there" if leaf else "they share a cause"
                context.alert(
                    "nodes.fault_storm",
                    f"{len(found.own)} of {len(nodes)} nodes report a fault within a minute ({_listed(found.own)}; "
                    f"{first.sentence}): {cause}; nothing is drained or requeued",
                )
            context.journal.put(STORM_KEY, json.dumps(kept))
            self._late |= {name: faults[name].marker.sentence for name in found.late}
            self._tell_late(context.now_s())
        await self._clear(sorted(names), f"{STORM_KEY}.{storm.last_at_s:.0f}", "part of a storm of faults")
        return names

    def _tell_late(self, now_s: float) -> None:
        """Name the nodes that came after a storm: no other alert tells their faults."""
        if not self._late or now_s - self._late_told_s < LATE_TOLD_S:
            return
        text = f"{_listed(self._late)}: a fault soon after a storm of such faults ({next(iter(self._late.values()))})"
        self.context.alert("nodes.fault_storm", f"{text}: taken for a part of it, neither drained nor requeued")
        self._late, self._late_told_s = {}, now_s

    # --- one node

    async def _handle(self, name: str, faults: Mapping[str, SeenFault], gather_s: float) -> None:
        """Do what is missing: bring the jobs back, drain the node, remove the marker."""
        context, fault, marker = self.context, faults[name], faults[name].marker
        key, waited_s = _key(name, marker), context.now_s() - self._since_s[name]
        node = context.readings.nodes[name]
        if foreign(node):
            await self._clear([name], key, f"left to whoever took the node out of service ({node.reason})")
            return
        if waited_s < gather_s:
            return
        if context.now_s() - context.readings.jobs_at_s > JOBS_AGE_S:
            await context.read_jobs()
        there = [await self._there(job, name, fault) for job in self._jobs(name)]
        step = next_step(fault, there, waited_s, gather_s)
        if step.bring_back and not self._may_leave(name, marker):
            return
        for job in step.bring_back:
            await self._bring_back(job, name, faults)
        if step.wait or (step.bring_back and context.acting):
            return
        if not context.acting:
            self._announce(key, [name], f"{name}: would be drained: {marker.sentence}")
            return
        if await self._drained(name, marker):
            await self._clear([name], key, "the node is drained, and its jobs have left or go on")

    def _jobs(self, name: str) -> list[Job]:
        held = ("RUNNING", "CONFIGURING")
        return [j for j in self.context.readings.jobs.values() if name in j.nodes and j.state in held]

    async def _there(self, job: Job, node: str, fault: SeenFault) -> JobThere:
        job_id = job.ref.job_id
        there = JobThere(
            job,
            supervised=job_id in self.intake.supervised,
            protected=self.failures.protected(job),
            stays=self.intake.stays(job_id, fault.seen_s - PLAN_EARLIER_S),
            recovering=self.recoveries.of_job(job_id) is not None,
            decided=self.context.journal.incident(incident_key(job, _name(node, fault.marker))) is not None,
        )
        if fault.marker.about_gpus and in_question(there, fault):
            return replace(there, gpus=await self._gpus_of(job, node))
        return there

    async def _gpus_of(self, job: Job, node: str) -> frozenset[int] | None:
        """Return the GPUs that a job was given there; None if that is not known."""
        context, key = self.context, (job.ref.job_id, job.restart_count, node)
        if key in self._gpus:
            return self._gpus[key]
        try:
            gpus = (await context.call(context.client.job_gpus, job.ref)).get(node)
        except SlurmError as error:
            context.info("fault.gpus", f"the GPUs of job {job.ref.address} are not known: {error}", key=node)
            return None
        if not gpus and "gpu" not in context.readings.nodes[node].gres:
            gpus = None  # Slurm does not give out this node's GPUs: that it gave none means nothing
        self._gpus[key] = gpus
        return gpus

    async def _bring_back(self, job: Job, node: str, faults: Mapping[str, SeenFault]) -> None:
        """Start the job's recovery without this node and others with a fault, if it still runs there as it did."""
        context, marker = self.context, faults[node].marker
        now_job = await context.call(context.client.job, job.ref)
        same = now_job is not None and now_job.restart_count == job.restart_count and node in now_job.nodes
        if now_job is None or not same or not self.failures.protected(now_job):
            return
        await context.read_reservations()
        reason = f"{marker.sentence}, as {node} reports"
        context.alert(SignalKind.NODE_FAULT.value, f"job {job.ref.address}: {reason}", key=_key(node, marker))
        name, at_s = _name(node, marker), float(marker.at_s)
        out = [n for n in now_job.nodes if n in faults and await self._concerns(now_job, n, faults[n].marker)]
        remedy = named(marker.remedy) if out == [node] else None
        asked = unasked.Unasked(NODE_FAULT, name, now_job, out, reason, "drain", at_s, remedy)
        unasked.begin(context, self.intake, self.recoveries, asked)

    async def _concerns(self, job: Job, node: str, marker: FaultMarker) -> bool:
        if marker.spares_jobs:
            return False
        gpus = await self._gpus_of(job, node) if marker.about_gpus else None
        return concerns(marker, job, gpus) is not False

    def _may_leave(self, name: str, marker: FaultMarker) -> bool:
        """Return whether the node is out of service, or may be taken out: otherwise the next job would start there."""
        if self.context.readings.nodes[name].drained or not self.context.acting:
            return True
        if self.breaker.allows(frozenset((name,))):
            return True
        text = f"{name} is not drained, and its jobs stay: the breaker is open: {marker.sentence}"
        self._announce(_key(name, marker), [name], text)
        return False

    async def _drained(self, name: str, marker: FaultMarker) -> bool:
        """Drain the node, if the breaker allows it; True if it is drained."""
        if not self._may_leave(name, marker):
            return False
        if self.context.readings.nodes[name].drained:
            return True
        sentence = tagged(marker.sentence, named(marker.remedy), MAX_DRAIN_REASON_CHARS - len(REASON_PREFIX) - 1)
        return await full_check.drain(self.actor, self.breaker, _key(name, marker), name, sentence)

    def _announce(self, key: str, names: list[str], text: str) -> None:
        """Say this once; the nodes are looked at again after a while, since a person has to do something first."""
        self._not_before_s |= dict.fromkeys(names, self.context.now_s() + LOOK_AGAIN_S)
        if key not in self._announced:
            self._announced.add(key)
            self.context.alert(SignalKind.NODE_FAULT.value, text)

    async def _clear(self, names: list[str], key: str, why: str) -> None:
        """Remove the markers of these nodes, unless they have changed since; what else stands there stays."""
        context, now_s = self.context, self.context.now_s()
        names = [name for name in names if now_s >= self._not_before_s.get(name, 0.0)]
        if not names:
            return
        if not context.acting:
            text = f"{fold(names)}: fault markers would be removed: {why}"
            self._announce(f"{key} {fold(names)}", names, text)
            return
        self._not_before_s |= dict.fromkeys(names, now_s + CLEAR_AGAIN_S)
        with context.guarded("fault.waits", fold(names), key=key):
            await self._clear_now(names, key, why)

    async def _clear_now(self, names: list[str], key: str, why: str) -> None:
        context = self.context
        before = {name: context.readings.nodes[name].extra for name in names}
        await context.read_nodes()
        changes: dict[str, list[str]] = {}
        for name in names:
            node = context.readings.nodes.get(name)
            if node is not None and fault_marker.parse(node.extra) == fault_marker.parse(before[name]):
                changes.setdefault(fault_marker.without(node.extra), []).append(name)
        for text, same in changes.items():
            action = Action(ActionKind.CLEAR_FAULT, fold(same), why, {"extra": text})
            await self.actor.perform(key, action)
            await context.read_nodes()
            left = (context.readings.nodes[name].extra for name in same if name in context.readings.nodes)
            if not any(map(fault_marker.marked, left)):
                context.journal.note_result(key, action, context.now_s())


def _listed(names: Iterable[str]) -> str:
    return shortened(fold(sorted(names)), 600)


def _name(node: str, marker: FaultMarker) -> str:
    """Return the incident's name: another fault of the same node is another incident."""
    return f"fault-{node}-{marker.at_s}"[:64]


def _key(node: str, marker: FaultMarker) -> str:
    """Return the key of actions that do not belong to a job's incident."""
    return f"fault.{node}.{marker.at_s}"
