"""Asks Slurm which nodes of the job are lost: if a rank dies with its node, the node is at fault."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence

from slurm_robust.core.model import Signal, SignalKind
from slurm_robust.slurm.client import Node
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.supervise.session import Session
from slurm_robust.supervise.watch import drain_watch
from slurm_robust.supervise.watch.attempt_state import SILENT_AGENT_S, AttemptState
from slurm_robust.supervise.watch.fault_watch import nodes_in_use


def lost_nodes(nodes: Sequence[str], known: Iterable[Node], answering: Collection[str]) -> list[str]:
    """Return the nodes that are dead: down, or not responding to Slurm while their agent is silent, too.

    A slurmd that is busy or restarts makes its node NOT_RESPONDING for a while, though the training goes on there.
    """
    lost = {n.name for n in known if n.state == "DOWN" or ("NOT_RESPONDING" in n.flags and n.name not in answering)}
    return [name for name in nodes if name in lost]


async def find_dead_nodes(session: Session, attempt: AttemptState) -> tuple[str, ...]:
    """Ask Slurm for dead nodes, and note them as signals of the attempt; empty if Slurm does not answer."""
    now_s = session.clock.now_s()
    dead: list[str] = []
    try:
        used = nodes_in_use(session, attempt)
        drains = await asyncio.to_thread(drain_watch.read, session, used)
        answering = attempt.fleet.heard_within(now_s, SILENT_AGENT_S)
        dead = lost_nodes(session.allocation.nodes, drains.nodes, answering)
        drain_watch.take(session, drains, used)
        session.node_faults.pass_on(attempt.signals, session.folder)
    except SlurmError as error:
        session.folder.log_event("note", f"Slurm could not be asked about the job's nodes: {error}")
    # Rebuilt each time: a node that is back is not evidence any more.
    known = {x.node: x for x in attempt.signals if x.kind is SignalKind.NODE_DOWN}
    attempt.signals[:] = [x for x in attempt.signals if x.kind is not SignalKind.NODE_DOWN]
    text = "Slurm calls it down or not responding"
    for node in dead:
        attempt.signals.append(known.get(node) or Signal(SignalKind.NODE_DOWN, now_s, "slurm", text, node=node))
    return tuple(dead)
