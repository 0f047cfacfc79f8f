"""Decides which nodes are left out of the next attempt, and which road it takes. Pure.

`decide` calls `leave_at_fault` and `leave` once it is clear that training is to go on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from slurm_robust.core.model import EXIT_STOPPED_FOR_GOOD, Conclusion, FailureCause, Plan, Road
from slurm_robust.core.text import joined, shortened
from slurm_robust.policy.job import repeats, tested
from slurm_robust.policy.job.consequences import may_evict
from slurm_robust.policy.job.situation import Situation

_SURE = 0.7
"""At a hang, a suspect of less confidence is not left because the same failure was seen on its node before."""


def at_fault(s: Situation) -> dict[str, str]:
    """Return the nodes of the allocation to evict, each with its reason."""
    return {**reported(s), **blamed(s)}


def reported(s: Situation) -> dict[str, str]:
    """Return nodes that reported a fault of their own: no attempt is started on them again, whatever else is wrong."""
    return {node: why for node, why in s.faulty_nodes.items() if node in s.allocation_nodes}


def _only_reported(s: Situation) -> bool:
    """Return whether the training itself is fine: nodes have only reported faults, and it runs on them."""
    over = s.stopped or s.action_limit_reached or set(s.dead_nodes) & s.used_nodes
    return bool(s.faulty_nodes) and not over and {x.node for x in s.verdict.suspects} <= set(s.faulty_nodes)


def blamed(s: Situation) -> dict[str, str]:
    """Return the nodes that are at fault for this incident, by evidence or by what tests have found."""
    return {**by_tests(s), **by_evidence(s)}


def by_tests(s: Situation) -> dict[str, str]:
    """Return the nodes to leave for what tests have found; empty if these would be too many."""
    bound = max_evictions(len(s.allocation_nodes))
    return next((some for some in tested.choices(s) if len(s.used_nodes & set(some)) <= bound), {})


def by_evidence(s: Situation) -> dict[str, str]:
    """Return the nodes at fault as far as is known without tests: whose fault the incident is, is decided here."""
    nodes: dict[str, str] = {}
    for node in s.dead_nodes:
        nodes[node] = f"{node} is dead or still has processes after SIGKILL"
    if s.verdict.conclusion is Conclusion.CULPRIT and may_evict(s.verdict.grade):
        for suspect in s.verdict.suspects:
            # A hang at the place of an earlier hang proves nothing by itself: its nodes are tested.
            again = (s.ended or suspect.confidence >= _SURE) and _failed_there_before(s, suspect.node)
            if suspect.infrastructure:
                nodes.setdefault(suspect.node, suspect.why)
            elif again:
                nodes.setdefault(suspect.node, f"{suspect.why}; the same failure again on {suspect.node}")
    if s.failure is not None and s.failure.cause is FailureCause.SHARED and len(s.failure.nodes) == 1:
        # The outage was waited for: what a single node has missed for so long is the node's own mount or route.
        node = s.failure.nodes[0]
        if repeats.always_on(node, s.failure, s.earlier_failures):
            nodes.setdefault(node, f"{finding(s)}; {node} alone has met it, each time")
    return {node: why for node, why in nodes.items() if node in s.allocation_nodes}


def _failed_there_before(s: Situation, node: str) -> bool:
    if s.failure is None or s.failure.cause is FailureCause.PROGRAM:
        return False
    return repeats.always_on(node, s.failure, (*s.earlier_failures, *s.older_failures))


def max_evictions(nodes: int) -> int:
    """Return how many nodes may be left: half of them, but at least one; more would share a cause outside the nodes."""
    return max(1, nodes // 2)


def with_dirty(evict: Sequence[str], dirty: Collection[str], nodes: int) -> tuple[str, ...] | None:
    """Return the nodes to evict, with those that still have processes; None if these are too many to be at fault."""
    leave = tuple(sorted({*evict, *dirty}))
    return leave if not dirty or len(leave) <= max_evictions(nodes) else None


def leave_at_fault(s: Situation) -> Plan | None:
    """Return the plan that leaves the nodes at fault; None if no node is at fault."""
    faults = at_fault(s)
    if not faults:
        return None
    bound = max_evictions(len(s.allocation_nodes))
    # A spare costs the training nothing. Nodes at fault go before nodes that only reported something.
    sets = (faults, blamed(s), by_evidence(s), reported(s))
    chosen = next((some for some in sets if some and len(s.used_nodes & set(some)) <= bound), None)
    return leave(s, chosen) if chosen is not None else _too_many(s, faults)


def leave(s: Situation, faults: Mapping[str, str]) -> Plan:
    """Return the plan that leaves these nodes, each for its reason, by the best road."""
    evict = tuple(sorted(faults))
    why = joined(faults[node] for node in evict)
    names = shortened(", ".join(evict), 60)
    inside = _why_not_inside(s, set(evict))
    if not inside:
        spares = ", ".join(sorted(set(s.healthy_spares) - set(evict))[:8])
        reason = f"{why}. Restart in the allocation without {names}" + (
            f": spares are there ({spares})" if spares else ""
        )
        return Plan(Road.SPARE_IN_ALLOCATION, reason, evict)
    if not s.job.requeueable:
        return _cannot_requeue(s, why, names, inside)
    return by_requeue(s, why, f" without {names} (not inside the allocation: {inside})", evict)


def _why_not_inside(s: Situation, evict: set[str]) -> str:
    """Return why the next attempt cannot run in this allocation without these nodes; empty if it can."""
    if s.outside:
        return "the step is not ours to start"
    dead = set(s.dead_nodes) & set(s.allocation_nodes)
    if s.batch_node in dead:
        return f"the batch script's own node {s.batch_node} is dead"
    if dead and not s.job.survives_node_failure:
        return f"Slurm ends the job with its dead node {min(dead)} (its script has no --no-kill)"
    named = evict & s.excluded_named
    if named:
        return f"the command or the environment names {min(named)}"
    # If the nodes in use were not given, unhealthy spares may be among them: they do not count.
    spares = set(s.healthy_spares) - evict - set(s.ladder.left)
    left = s.training_node_count - len(evict & s.used_nodes) + len(spares)
    left = min(left, len(set(s.allocation_nodes) - evict))
    if left >= s.training_node_count:
        return lost_inside(s)
    return f"it needs {s.training_node_count} nodes, and {left if left > 0 else 'none'} would be left"


def lost_inside(s: Situation) -> str:
    """Return why the script, and not only its command, should be run again; empty if there is no difference."""
    if s.resumes or not s.at_stake or not s.job.requeueable or s.outside:
        return ""
    if s.resumes is None:
        return "nothing shows that the command alone resumes, and a requeue runs the script again"
    return "the command alone started from zero before, and a requeue runs the script again"


def _too_many(s: Situation, faults: dict[str, str]) -> Plan:
    suspected = (
        f"{len(faults)} of {len(s.allocation_nodes)} nodes are suspected ({shortened(', '.join(sorted(faults)), 60)})"
    )
    reason = f"{suspected}, more than half: a cause that they share, so none is evicted; {finding(s)}"
    if _only_reported(s):
        return Plan(Road.ALERT_ONLY, f"{reason}. Nothing is done while the training goes on")
    usable = not s.dead_nodes and not s.faulty_nodes
    if usable and s.restarts_tried == 0 and not s.outside and not lost_inside(s):
        return Plan(Road.RESTART_IN_PLACE, f"{reason}. Restart in place once")
    if s.outside and not s.job.requeueable:
        return alert_only(s, reason)
    if s.job.requeueable:
        return by_requeue(s, reason, "; Slurm itself leaves out the nodes that are down")
    return Plan(Road.STOP, f"{reason}. The job may not be requeued", exit_code=own_code(s))


def _cannot_requeue(s: Situation, why: str, names: str, inside: str) -> Plan:
    if s.outside:
        return alert_only(s, why)
    dead = set(s.dead_nodes) & set(s.allocation_nodes)
    if _only_reported(s):
        return Plan(Road.ALERT_ONLY, f"{why}. Nothing is done: the job may not be requeued, and {inside}")
    if not dead and not s.faulty_nodes and s.restarts_tried == 0:
        reason = f"{why}. The job may not be requeued and has no place for it inside ({inside}): restart in place once"
        return Plan(Road.RESTART_IN_PLACE, reason)
    reason = f"{why}. No road without {names}: the job may not be requeued, and {inside}. Submit it with --requeue"
    return Plan(Road.STOP, reason, exit_code=own_code(s))


def alert_only(s: Situation, why: str) -> Plan:
    """Return a plan without a restart: the step is not ours to start, and the job may not be requeued."""
    because = "the job may not be requeued, and the step is not ours to start"
    if s.over:
        return Plan(Road.STOP, f"{why}. Nothing is started again: {because}", exit_code=own_code(s))
    return Plan(Road.ALERT_ONLY, f"{why}. Nothing is done: {because}")


def by_requeue(s: Situation, why: str, rest: str, evict: tuple[str, ...] = ()) -> Plan:
    """Return the best plan that requeues the job; `rest` ends the sentence that says how."""
    if s.daemon:
        road, how = Road.SEAT, "Requeue into a seat that the site's daemon holds"
    elif s.daemon is None and not s.user_daemon:
        road, how = Road.SEAT, "Requeue (into a seat, if the site's daemon answers)"
    elif s.user_daemon:
        road, how = Road.OWNER_REQUEUE, "Requeue by the owner's own daemon"
    else:
        road, how = Road.PLAIN_REQUEUE, "Plain requeue (about two minutes, and its nodes may be taken)"
    return Plan(road, f"{why}. {how}{rest}", evict)


def nobody(s: Situation, why: str) -> str:
    """Return the sentence, with the addition that nothing speaks against a node."""
    if s.verdict.conclusion is not Conclusion.CULPRIT:
        return f"{why}; no node is known to be at fault"
    return why if "node is at fault" in why else f"{why}; nothing says that a node is at fault"


def own_code(s: Situation) -> int:
    """Return the program's own exit code; if it has none (it hung, or ended with 0), the one that forbids a requeue."""
    return s.exit_code or EXIT_STOPPED_FOR_GOOD


def finding(s: Situation) -> str:
    """Return what the verdict says, as a sentence."""
    return s.verdict.reason or s.verdict.conclusion.value
