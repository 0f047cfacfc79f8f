"""Reads the fault markers of nodes with jobs: brings the jobs back, and drains the node; a storm is one alert.

Nothing here remembers how far it came, beside the journal: a marker stays until its node is drained and its jobs have
left, and each reading of the nodes decides anew what is missing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from slurm_robust import fault_marker
from slurm_robust.daemon.actor import Actor
from slurm_robust.daemon.context import DaemonContext
from slurm_robust.daemon.controllers import full_check, unasked
from slurm_robust.daemon.controllers.breaker import Breaker
from slurm_robust.daemon.controllers.claim_intake import incident_key
from slurm_robust.daemon.controllers.node_failures import NodeFailures
from slurm_robust.fault_marker import FaultMarker
from slurm_robust.model import REASON_PREFIX, Action, ActionKind, SignalKind
from slurm_robust.policy.cluster.node_faults import STORM_S, SUPERVISOR_S, JobThere, Storm, in_storm, next_step, touches
from slurm_robust.policy.cluster.node_states import foreign
from slurm_robust.policy.cluster.recovery_plan import MAX_DRAIN_REASON_CHARS, NODE_FAULT
from slurm_robust.remedy import Remedy, tagged
from slurm_robust.slurm.client import Job, Node
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.slurm.values import fold
from slurm_robust.text import shortened

STORM_KEY = "fault_storm"
JOBS_AGE_S = 0.5
"""A reading of the jobs that is older is made again, before anything follows from it."""
WATCHFUL_S = SUPERVISOR_S + 10.0
"""How long a marker makes the daemon read the nodes more often."""


class MarkedFaults:
    """Compares each reading of the nodes with the jobs that run where a fault is marked."""

    def __init__(self, context: DaemonContext, actor: Actor, breaker: Breaker, failures: NodeFailures) -> None:
        self.context, self.actor, self.breaker, self.failures = context, actor, breaker, failures
        self.intake, self.recoveries = failures.intake, failures.recoveries
        self._since_s: dict[str, float] = {}
        self._announced: set[str] = set()

    @property
    def suspicious(self) -> bool:
        """True while a marker is new: the nodes are then read more often."""
        now_s = self.context.now_s()
        return any(now_s - since_s < WATCHFUL_S for since_s in self._since_s.values())

    def restart_timers(self) -> None:
        """The clock was set back: wait anew."""
        self._since_s.clear()

    async def tick(self) -> None:
        """After each reading of the nodes; an error with one node does not delay the others."""
        context, now_s = self.context, self.context.now_s()
        marked = {n.name: n for n in context.readings.nodes.values() if fault_marker.marked(n.extra)}
        fresh = {name: marker for name, node in marked.items() if (marker := self._fresh(node, now_s)) is not None}
        self._since_s = {name: min(self._since_s.get(name, now_s), now_s) for name in fresh}
        if not marked:
            self._announced.clear()
            return
        if old := sorted(set(marked) - set(fresh)):
            await self._clear(old, "fault_markers", "too old, of another boot, or not to be read")
        storm = await self._storm(fresh)
        alone = {name: fresh[name] for name in sorted(set(fresh) - storm)}
        for name in alone:
            with context.guarded("fault.waits", name, key=name):
                await self._handle(name, alone, now_s - self._since_s[name])

    def _fresh(self, node: Node, now_s: float) -> FaultMarker | None:
        marker = fault_marker.parse(node.extra)
        return marker if marker and fault_marker.fresh(marker, now_s, node.boot_at_s) else None

    async def _storm(self, markers: Mapping[str, FaultMarker]) -> frozenset[str]:
        """Announce a storm, once, and remove its markers; returns the nodes that are part of it."""
        context, nodes = self.context, self.context.readings.nodes
        known = context.journal.get(STORM_KEY)
        earlier = Storm(float(json.loads(known))) if known else None
        faults = {name: float(marker.at_s) for name, marker in markers.items()}
        storm = in_storm(faults, nodes, context.config.breaker, earlier)
        if not storm:
            return storm
        last_s = max([*(faults[name] for name in storm), earlier.last_at_s if earlier else 0.0])
        late = earlier is not None and any(abs(faults[name] - earlier.last_at_s) <= STORM_S for name in storm)
        if earlier is None or last_s != earlier.last_at_s:
            context.journal.put(STORM_KEY, json.dumps(last_s))
            names = shortened(fold(sorted(storm)), 200)
            first = markers[min(storm)]
            if late:
                context.info("nodes.fault_storm", f"{names}: part of the same storm of faults ({first.sentence})")
            else:
                context.alert(
                    "nodes.fault_storm",
                    f"{len(storm)} of {len(nodes)} nodes report a fault within a minute ({names}; {first.sentence}): "
                    "they share a cause, and nothing is drained or requeued",
                )
        await self._clear(sorted(storm), f"{STORM_KEY}.{last_s:.0f}", "part of a storm of faults")
        return storm

    async def _handle(self, name: str, markers: Mapping[str, FaultMarker], seen_s: float) -> None:
        """Take what is missing of: the jobs brought back, the node drained, the marker removed."""
        context, marker = self.context, markers[name]
        key = _key(name, marker)
        node = context.readings.nodes[name]
        if foreign(node):
            await self._clear([name], key, f"left to whoever took the node out of service ({node.reason})")
            return
        if context.now_s() - context.readings.jobs_at_s > JOBS_AGE_S:
            await context.read_jobs()
        step = next_step(marker, [await self._there(job, name, marker) for job in self._jobs(name)], seen_s)
        if step.bring_back and not self._may_leave(name, marker):
            return
        for job in step.bring_back:
            await self._bring_back(job, name, markers)
        if step.wait or (step.bring_back and context.acting):
            return
        if not context.acting:
            self._announce(key, f"{name}: would be drained: {marker.sentence}")
            return
        if await self._drained(name, marker):
            await self._clear([name], key, "the node is drained, and its jobs have left or go on")

    def _jobs(self, name: str) -> list[Job]:
        return [j for j in self.context.readings.jobs.values() if name in j.nodes and j.state == "RUNNING"]

    async def _there(self, job: Job, node: str, marker: FaultMarker) -> JobThere:
        job_id = job.ref.job_id
        recovering = self.recoveries.of_job(job_id) is not None
        claim = self.intake.supervised.get(job_id)
        return JobThere(
            job,
            supervised=claim is not None,
            protected=self.failures.protected(job),
            stays=claim is not None and bool(claim.road) and claim.at_s >= marker.at_s,
            recovering=recovering,
            decided=self.context.journal.incident(incident_key(job, _name(node, marker))) is not None,
            gpus=await self._gpus(job, node) if marker.gpus and not recovering else frozenset(),
        )

    async def _gpus(self, job: Job, node: str) -> frozenset[int]:
        """The GPUs that a job was given there; none where that is not known."""
        try:
            return (await self.context.call(self.context.client.job_gpus, job.ref)).get(node, frozenset())
        except SlurmError as error:
            self.context.info("fault.gpus", f"the GPUs of job {job.ref.address} are not known: {error}", key=node)
            return frozenset()

    async def _bring_back(self, job: Job, node: str, markers: Mapping[str, FaultMarker]) -> None:
        """Start the job's recovery without this node and others with a fault, if it still runs there as it did."""
        context, marker = self.context, markers[node]
        now_job = await context.call(context.client.job, job.ref)
        same = now_job is not None and now_job.restart_count == job.restart_count and node in now_job.nodes
        if now_job is None or not same or not self.failures.protected(now_job):
            return
        await context.read_reservations()
        reason = f"{marker.sentence}, as {node} reports"
        context.alert(SignalKind.NODE_FAULT.value, f"job {job.ref.address}: {reason}", key=_key(node, marker))
        name, at_s = _name(node, marker), float(marker.at_s)
        out = [n for n in now_job.nodes if n in markers and touches(markers[n].gpus, await self._gpus(now_job, n))]
        remedy = _remedy(marker) if out == [node] else None
        asked = unasked.Unasked(NODE_FAULT, name, now_job, out, reason, "drain", at_s, remedy)
        unasked.begin(context, self.intake, self.recoveries, asked)

    def _may_leave(self, name: str, marker: FaultMarker) -> bool:
        """True where the node is out of service, or may be taken out: otherwise the next job would start there."""
        if self.context.readings.nodes[name].drained or not self.context.acting:
            return True
        if self.breaker.allows(frozenset((name,))):
            return True
        text = f"{name} is not drained, and its jobs stay: the breaker is open: {marker.sentence}"
        self._announce(_key(name, marker), text)
        return False

    async def _drained(self, name: str, marker: FaultMarker) -> bool:
        """Drain the node, if the breaker allows it; True where it is drained."""
        if not self._may_leave(name, marker):
            return False
        if self.context.readings.nodes[name].drained:
            return True
        sentence = tagged(marker.sentence, _remedy(marker), MAX_DRAIN_REASON_CHARS - len(REASON_PREFIX) - 1)
        return await full_check.drain(self.actor, self.breaker, _key(name, marker), name, sentence)

    def _announce(self, key: str, text: str) -> None:
        if key not in self._announced:
            self._announced.add(key)
            self.context.alert(SignalKind.NODE_FAULT.value, text)

    async def _clear(self, names: list[str], key: str, why: str) -> None:
        """Remove the markers of these nodes, unless they have changed since; what else stands there stays."""
        context = self.context
        if not context.acting:
            self._announce(f"{key} {fold(names)}", f"{fold(names)}: fault markers would be removed: {why}")
            return
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


def _remedy(marker: FaultMarker) -> Remedy | None:
    return next((known for known in Remedy if known.value == marker.remedy), None)


def _name(node: str, marker: FaultMarker) -> str:
    """The incident's name: another fault of the same node is another incident."""
    return f"fault-{node}-{marker.at_s}"[:64]


def _key(node: str, marker: FaultMarker) -> str:
    """Of actions that belong to no job's incident."""
    return f"fault.{node}.{marker.at_s}"
