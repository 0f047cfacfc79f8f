"""Decides what is done about an incident: which nodes are evicted, and by which road training goes on. Pure.

The wrapper calls `decide` for each incident; what the daemon does about a claim is decided in `cluster.recovery_plan`.
The rules, in order:

1. A job that cannot be addressed (het jobs) is only alerted on.
2. Nothing has ended, and neither a corroborated verdict nor the action limit asks for an action: wait.
3. Slurm could not start the step: requeue a restarted job, a few times; stop any other with its own exit code.
4. A full disk ended it, and is still full: stop with its own exit code.
5. Something that nodes share is not available (storage, a name service): wait, each time twice as long, and try again.
   Nobody is evicted and no attempt counts as fruitless, until the waiting has reached its limit.
6. Another version of the job's code is the answer (`code_versions.after_failure`): restart with it; no node is blamed.
7. Attempts without a new step, or failed launches of the job, reached their limit: stop, exit 93. Failures whose
   messages have nothing in common are counted apart, up to twice the limit. A job that trains, and of which only a
   node has reported a fault, is never stopped.
8. A training that ended with a bad loss, and no node is at fault: go back to an earlier checkpoint; bounded.
9. The program's own error, a normal end, or an end from outside: stop with its own exit code; no node is blamed.
10. A step that was not launched by us ended without a new step, and only an exit code is known: stop with that code,
    since the script that started the step may be waiting for it.
11. The same failure has occurred on other nodes: stop with its own exit code; no node is blamed.
12. Nodes are at fault (`_at_fault`: by verdict, death, or the same failure again on the same node), or have reported a
    fault of their own (`faulty_nodes`): evict them, by the best road (`_evict`). Never more than half of the job's
    nodes (`max_evictions`); if these are too many, at least those at fault, or else those that reported a fault.
13. Everything else: restart in place once; if that fails, requeue without naming a node; if that fails, stop.

If a restart with the same command may begin from zero and overwrite what was saved, the job is requeued instead of
restarted within its allocation, if it may be: a requeue runs the script again.

If the loss is bad, the next attempt also goes back to an earlier checkpoint, whichever road it takes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from slurm_robust.model import EXIT_STOPPED_FOR_GOOD, Conclusion, FailureCause, Plan, Road
from slurm_robust.policy.job import code_versions, outage, repeats
from slurm_robust.policy.job.situation import Situation
from slurm_robust.text import joined, shortened

_LAUNCHES_BY_REQUEUE = 2
"""How often a requeue is tried where Slurm cannot start the step; after that the site must find the cause."""


def decide(situation: Situation) -> Plan:
    """Choose the road. `ALERT_ONLY` means: alert, and continue to watch."""
    if situation.job.het_job or not situation.job.addressable:
        what = "a het job" if situation.job.het_job else "not addressable as one job"
        return Plan(Road.ALERT_ONLY, f"the job is {what}, which is only alerted on; {_finding(situation)}")
    if not _due(situation):
        return Plan(Road.ALERT_ONLY, f"waiting: {_finding(situation)}{_missing(situation)}")
    for rule in _RULES:
        plan = rule(situation)
        if plan is not None:
            return plan
    plan = _evict(situation) or _no_node(situation)
    bad = situation.bad_loss
    if bad is None or bad.why_not or plan.road is Road.STOP:
        return plan
    return replace(plan, reason=f"{plan.reason}; {bad.back}", roll_back=True)


def _due(s: Situation) -> bool:
    """Something ended, a node in use is dead, or the verdict or the action limit asks for an action.

    The limit counts whatever the stacks show: an endless loop is always in motion and never trains.
    """
    if s.ended or s.action_limit_reached or set(s.dead_nodes) & s.used_nodes:
        return True
    return s.verdict.conclusion is not Conclusion.NONE and s.verdict.corroborated


def _settled(s: Situation) -> bool:
    """The attempt has ended, or cannot go on: what a rank has raised is certain at once."""
    return s.ended or s.verdict.corroborated


def _no_launch(s: Situation) -> Plan | None:
    """Slurm 22.05 can lose a requeued job's GRES when a node dies at that time; another allocation has its own.

    A seat would not help: it would hold the nodes whose GRES Slurm counts as used.
    """
    if s.failure is None or s.failure.cause is not FailureCause.SLURM or not s.ended:
        return None
    tried = sum(earlier.cause is FailureCause.SLURM for earlier in s.earlier_failures)
    if s.job.requeueable and s.job.requeued and tried < _LAUNCHES_BY_REQUEUE:
        return Plan(
            Road.PLAIN_REQUEUE, f"{_finding(s)}. The job has lost its GRES: plain requeue, for another allocation"
        )
    hint = "a step cannot have GRES that its job does not have (scontrol -d show job tells)"
    return Plan(Road.STOP, f"{_finding(s)}; {hint}", exit_code=_own_code(s))


def _full_disk(s: Situation) -> Plan | None:
    """The next attempt would fail in the same way, wherever it runs."""
    if not s.full_disk or not _settled(s):
        return None
    return Plan(Road.STOP, f"{_finding(s)}. No restart and no requeue helps: {s.full_disk}", exit_code=_own_code(s))


def _outage(s: Situation) -> Plan | None:
    """No other node would do better, and the allocation is worth more than the minutes: wait in it."""
    if s.failure is None or s.failure.cause is not FailureCause.SHARED or not _settled(s) or s.dead_nodes:
        return None
    before = outage.attempts_lost(s.earlier_failures)
    pause_s, waited_s = outage.pause_s(before, s.outage_wait_s), outage.waited_s(before)
    if pause_s <= 0:
        return None
    limit = f"limit {s.outage_wait_s:g} s" + ("" if s.at_stake else " before the training's first step")
    so_far = f" (waited so far: {waited_s:g} s; {limit})" if before else ""
    reason = f"{_finding(s)}. Wait {pause_s:g} s{so_far}"
    if s.outside and not s.job.requeueable:
        return _alert_only(_finding(s))
    lost = "the step is not ours to start" if s.outside else _lost_inside(s)
    plan = (
        _by_requeue(s, reason, f", no node named: {lost}")
        if lost
        else Plan(Road.RESTART_IN_PLACE, f"{reason}, then restart in place")
    )
    # The outage blames no node, but a node with a fault of its own is not used again.
    return replace((_evict(s) if s.faulty_nodes else None) or plan, pause_s=pause_s)


def _other_code(s: Situation) -> Plan | None:
    """The code is at fault, or an update of it waits for a failure: whatever a node seems to have to do with it."""
    if s.outside or set(s.dead_nodes) & s.used_nodes:
        return None
    program = s.ended and s.failure is not None and s.failure.cause is FailureCause.PROGRAM
    own_error = program or s.verdict.conclusion is Conclusion.USER_CODE
    chosen = code_versions.after_failure(s.code, s.failure, own_error=own_error, new_step=not s.fruitless)
    if chosen is None:
        return None
    reason = f"{chosen.reason}. No node is blamed; {_finding(s)}"
    plan = Plan(Road.RESTART_IN_PLACE, f"{reason}: restart in place")
    if lost := _lost_inside(s):
        plan = _by_requeue(s, reason, f", no node named: {lost}")
    # A node that has reported a fault of its own is not used again, for that reason alone.
    reported = _evict(replace(s, verdict=replace(s.verdict, suspects=()))) if s.faulty_nodes else None
    return replace(reported or plan, code=chosen.number)


def _fruitless(s: Situation) -> Plan | None:
    if s.trains:
        return None  # it may be on its way to a new step
    limit, unrelated = s.fruitless_limit, repeats.unrelated_before(s.failure, s.earlier_failures)
    if s.fruitless >= 2 * limit or s.fruitless - unrelated >= limit:
        reason = f"{s.fruitless} attempts in a row without a new step (limit {limit})"
    elif 0 < s.failed_launches_limit <= s.failed_launches:
        reason = f"{s.failed_launches} launches of this job ended without a new step within an hour"
        reason += f" (limit {s.failed_launches_limit}, supervise.fruitless_launches_per_hour)"
    else:
        return None
    reason += f"; last: {_finding(s)}"
    return Plan(Road.STOP, reason, exit_code=EXIT_STOPPED_FOR_GOOD)


def _bad_loss(s: Situation) -> Plan | None:
    """As far as is known, the loss itself ended it: the same start would lead to the same end."""
    bad = s.bad_loss
    if bad is None or not s.ended or _blamed(s):
        return None
    if not bad.why_not:
        return Plan(Road.RESTART_IN_PLACE, f"{_finding(s)}; {bad.back}", roll_back=True)
    if bad.spent:
        return Plan(Road.STOP, f"{_finding(s)}; {bad.why}, and {bad.why_not}", exit_code=_own_code(s))
    return None


def _own_end(s: Situation) -> Plan | None:
    if s.verdict.conclusion is Conclusion.USER_CODE:
        return Plan(Road.STOP, f"{_finding(s)}; no node is blamed", exit_code=_own_code(s))
    if s.ended and s.verdict.conclusion is Conclusion.NONE and not _blamed(s):
        code = EXIT_STOPPED_FOR_GOOD if s.exit_code is None else s.exit_code
        return Plan(Road.STOP, f"{_finding(s)}; nothing to recover from", exit_code=code)
    return None


def _left_to_script(s: Situation) -> Plan | None:
    """A step that prepares something may fail on purpose: a requeue would run the whole script again and again."""
    bare = s.failure is not None and s.failure.bare_exit
    if not (s.outside and s.over and s.fruitless and bare and s.exit_code) or _blamed(s):
        return None
    reason = f"{_finding(s)}; the step never got to a new step of training, and its exit code may mean something"
    return Plan(Road.STOP, f"{reason} to the script: it is left to the script", exit_code=s.exit_code)


def _repeated_elsewhere(s: Situation) -> Plan | None:
    """The same failure on other nodes comes from the program or its data, whatever the single verdict is."""
    if s.failure is None or not s.failure.nodes or s.failure.cause is FailureCause.NODE:
        return None
    if set(s.failure.nodes) & {*s.dead_nodes, *s.faulty_nodes}:
        return None
    earlier = repeats.elsewhere(s.failure, s.earlier_failures)
    if earlier is None:
        return None
    there, here = ", ".join(sorted(earlier.nodes)[:4]), ", ".join(sorted(s.failure.nodes)[:4])
    whose = "no node's" if s.failure.cause is FailureCause.SHARED else "the program's, no node's"
    reason = f"the same failure ({s.failure.signature}) came on {there} and now on {here}: {whose}"
    return Plan(Road.STOP, f"{reason}; {_finding(s)}", exit_code=_own_code(s))


def _at_fault(s: Situation) -> dict[str, str]:
    """The nodes of the allocation to evict, each with its reason."""
    return {**_reported(s), **_blamed(s)}


def _reported(s: Situation) -> dict[str, str]:
    """Nodes that have reported a fault of their own: whatever else is wrong, no attempt is started on them again."""
    return {node: why for node, why in s.faulty_nodes.items() if node in s.allocation_nodes}


def _only_reported(s: Situation) -> bool:
    """Whether nothing is wrong with the training itself: nodes have reported faults, and it runs on them."""
    over = s.ended or s.action_limit_reached or set(s.dead_nodes) & s.used_nodes
    return bool(s.faulty_nodes) and not over and {x.node for x in s.verdict.suspects} <= set(s.faulty_nodes)


def _blamed(s: Situation) -> dict[str, str]:
    """The nodes that are at fault for this incident: here it is decided whose fault it is."""
    nodes: dict[str, str] = {}
    for node in s.dead_nodes:
        nodes[node] = f"{node} is dead or still has processes after SIGKILL"
    if s.verdict.conclusion is Conclusion.CULPRIT:
        for suspect in s.verdict.suspects:
            again = _failed_there_before(s, suspect.node)
            if suspect.infrastructure:
                nodes.setdefault(suspect.node, suspect.why)
            elif again:
                nodes.setdefault(suspect.node, f"{suspect.why}; the same failure again on {suspect.node}")
    if s.failure is not None and s.failure.cause is FailureCause.SHARED and len(s.failure.nodes) == 1:
        # It was waited for: what one node alone has missed for so long is its own mount or route.
        node = s.failure.nodes[0]
        if repeats.always_on(node, s.failure, s.earlier_failures):
            nodes.setdefault(node, f"{_finding(s)}; {node} alone has met it, each time")
    return {node: why for node, why in nodes.items() if node in s.allocation_nodes}


def _failed_there_before(s: Situation, node: str) -> bool:
    if s.failure is None or s.failure.cause is FailureCause.PROGRAM:
        return False
    return repeats.always_on(node, s.failure, (*s.earlier_failures, *s.older_failures))


def max_evictions(nodes: int) -> int:
    """Never more than half of the nodes (but at least one): a larger number shares a cause outside the nodes."""
    return max(1, nodes // 2)


def with_dirty(evict: Sequence[str], dirty: Collection[str], nodes: int) -> tuple[str, ...] | None:
    """The nodes to evict, with those that still have processes; None if these are too many to be at fault."""
    leave = tuple(sorted({*evict, *dirty}))
    return leave if not dirty or len(leave) <= max_evictions(nodes) else None


def _evict(s: Situation) -> Plan | None:
    faults = _at_fault(s)
    if not faults:
        return None
    bound = max_evictions(len(s.allocation_nodes))
    # A spare costs the training nothing. Who is at fault goes before who only reported something.
    choices = (some for some in (faults, _blamed(s), _reported(s)) if some and len(s.used_nodes & set(some)) <= bound)
    chosen = next(choices, None)
    if chosen is None:
        return _too_many(s, faults)
    faults = chosen
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
    return _by_requeue(s, why, f" without {names} (not inside the allocation: {inside})", evict)


def _why_not_inside(s: Situation, evict: set[str]) -> str:
    """Why the next attempt cannot run in this allocation without these nodes; empty if it can."""
    dead = set(s.dead_nodes) & set(s.allocation_nodes)
    if s.batch_node in dead:
        return f"the batch script's own node {s.batch_node} is dead"
    if dead and not s.job.survives_node_failure:
        return f"Slurm ends the job with its dead node {min(dead)} (no --no-kill)"
    named = evict & s.excluded_named
    if named:
        return f"the command or the environment names {min(named)}"
    # If the nodes in use were not given, unhealthy spares may be among them: they do not count.
    left = s.training_node_count - len(evict & s.used_nodes) + len(set(s.healthy_spares) - evict)
    left = min(left, len(set(s.allocation_nodes) - evict))
    return _lost_inside(s) if left >= s.training_node_count else f"{left} healthy nodes for {s.training_node_count}"


def _lost_inside(s: Situation) -> str:
    """Why the script should be run again, and not only its command; empty if that makes no difference."""
    if s.resumes or not s.at_stake or not s.job.requeueable or s.outside:
        return ""
    if s.resumes is None:
        return "nothing shows that the command alone resumes, and a requeue runs the script again"
    return "the command alone started from zero before, and a requeue runs the script again"


def _too_many(s: Situation, faults: dict[str, str]) -> Plan:
    suspected = (
        f"{len(faults)} of {len(s.allocation_nodes)} nodes are suspected ({shortened(', '.join(sorted(faults)), 60)})"
    )
    reason = f"{suspected}, more than half: a cause that they share, so none is evicted; {_finding(s)}"
    if _only_reported(s):
        return Plan(Road.ALERT_ONLY, f"{reason}. Nothing is done while the training goes on")
    usable = not s.dead_nodes and not s.faulty_nodes
    if usable and s.restarts_tried == 0 and not s.outside and not _lost_inside(s):
        return Plan(Road.RESTART_IN_PLACE, f"{reason}. Restart in place once")
    if s.outside and not s.job.requeueable:
        return _alert_only(reason)
    if s.job.requeueable:
        return _by_requeue(s, reason, "; Slurm itself leaves out the nodes that are down")
    return Plan(Road.STOP, f"{reason}. The job may not be requeued", exit_code=_own_code(s))


def _cannot_requeue(s: Situation, why: str, names: str, inside: str) -> Plan:
    if s.outside:
        return _alert_only(why)
    dead = set(s.dead_nodes) & set(s.allocation_nodes)
    if _only_reported(s):
        return Plan(Road.ALERT_ONLY, f"{why}. Nothing is done: the job may not be requeued, and {inside}")
    if not dead and not s.faulty_nodes and s.restarts_tried == 0:
        reason = f"{why}. The job may not be requeued and has no place for it inside ({inside}): restart in place once"
        return Plan(Road.RESTART_IN_PLACE, reason)
    reason = f"{why}. No road without {names}: the job may not be requeued, and {inside}. Submit it with --requeue"
    return Plan(Road.STOP, reason, exit_code=_own_code(s))


def _alert_only(why: str) -> Plan:
    return Plan(
        Road.ALERT_ONLY, f"{why}. Nothing is done: the job may not be requeued, and the step is not ours to start"
    )


def _by_requeue(s: Situation, why: str, rest: str, evict: tuple[str, ...] = ()) -> Plan:
    """The best road by which the job is requeued; `rest` ends the sentence that says how."""
    if s.daemon:
        road, how = Road.SEAT, "Requeue into a seat that the site's daemon holds"
    elif s.daemon is None and not s.user_daemon:
        road, how = Road.SEAT, "Requeue (into a seat, if the site's daemon answers)"
    elif s.user_daemon:
        road, how = Road.OWNER_REQUEUE, "Requeue by the owner's own daemon"
    else:
        road, how = Road.PLAIN_REQUEUE, "Plain requeue (about two minutes, and its nodes may be taken)"
    return Plan(road, f"{why}. {how}{rest}", evict)


def _no_node(s: Situation) -> Plan:
    why = _finding(s)
    if s.failure is not None and s.failure.cause is FailureCause.SHARED:
        waited_s = outage.waited_s(outage.attempts_lost(s.earlier_failures))
        why += f"; it was waited for, {min(waited_s, s.outage_wait_s):g} s in all" if waited_s else ""
    if s.verdict.conclusion is not Conclusion.CULPRIT:
        why = f"{why}; no node is known to be at fault"
    elif "node is at fault" not in why:
        why = f"{why}; nothing says that a node is at fault"
    if s.outside and s.restarts_tried == 0:
        if not s.job.requeueable:
            return _alert_only(why)
        return _by_requeue(s, why, ", no node named")
    if s.restarts_tried < 2 and (lost := _lost_inside(s)):
        return _by_requeue(s, why, f", no node named: {lost}")
    if s.restarts_tried == 0:
        return Plan(Road.RESTART_IN_PLACE, f"{why}: restart in place on the same nodes")
    if s.job.requeueable and s.restarts_tried == 1:
        return _by_requeue(s, f"{why}, and a restart in place did not help", ", no node named")
    reason = f"{why}, and {s.restarts_tried} restarts in place did not help"
    return Plan(Road.STOP, reason, exit_code=_own_code(s))


def _own_code(s: Situation) -> int:
    """The program's own exit code; if it has none (it hung, or ended with 0), the one that forbids a requeue."""
    return s.exit_code or EXIT_STOPPED_FOR_GOOD


def _finding(s: Situation) -> str:
    return s.verdict.reason or s.verdict.conclusion.value


def _missing(s: Situation) -> str:
    missing = s.verdict.missing
    return f" (acting needs {'; '.join(missing)}, or the action limit)" if missing else " (or until the action limit)"


_RULES = (
    _no_launch, _full_disk, _outage, _other_code, _fruitless, _bad_loss, _own_end, _left_to_script, _repeated_elsewhere,
)  # fmt: skip
"""In this order; the first that has a plan decides."""
