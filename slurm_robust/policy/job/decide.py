"""Decides what is done about an incident: which nodes are evicted, and by which road training goes on. Pure.

The wrapper calls `decide` for each incident; what the daemon does about a claim is decided in `cluster.recovery_plan`.
The rules, in order:

1. A job that cannot be addressed (het jobs) is only alerted on.
2. Nothing has ended, and neither a corroborated verdict nor the action limit asks for an action: wait. How long a
   verdict is waited with depends on its grade and on the training's own healthy pauses (`consequences`).
3. Slurm could not start the step: requeue a restarted job, a few times; stop any other with its own exit code.
4. A full disk ended it, and is still full: stop with its own exit code.
5. Something that nodes share is not available (storage, a name service): wait, each time twice as long, and try again.
   Nobody is evicted and no attempt counts as fruitless, until the waiting has reached its limit.
6. Another version of the job's code is the answer (`code_versions.after_failure`): restart with it; no node is blamed.
7. The evidence is weak: restart in place, once. It never costs a node, however often it comes.
8. Only an exit code is known: no signal, no message, no fault of a node. The code is taken for the program's own: stop
   with that code, since the script may wait for it, and do not run twice what has ended.
9. No evidence names a node, and the ladder (`climb`) has a rung left: tests, the same again, the older code, a replay,
   a requeue. Nodes that fail a test are evicted as in 14. Rules 12 and 13 go before it, but a bad loss is tested first.
   A job whose launches reached their limit, or that came to twice the limit of attempts, climbs no more.
10. Attempts without a new step, or failed launches of the job, reached their limit: stop, exit 93. Failures whose
   messages have nothing in common are counted apart, up to twice the limit. A job that trains, and of which only a
   node has reported a fault, is never stopped. Tests and a replay are no attempts, and what they name is evicted.
11. A training ended with a bad loss, and no node is at fault: go back to an earlier checkpoint, a few times.
12. The program's own error, a normal end, or an end from outside: stop with its own exit code; no node is blamed. If
    the ranks of a training that made new steps stand in operations that never meet: restart in place, once, before.
13. The same failure has occurred on other nodes: stop with its own exit code; no node is blamed.
14. Nodes are at fault (`eviction.at_fault`: by verdict, death, a test, or the same failure again on the same node), or
    have reported a fault of their own (`faulty_nodes`): evict them, by the best road. Never more than half of the job's
    nodes (`max_evictions`); if these are too many, at least the nodes at fault, or else the nodes that reported a
    fault.
15. Anything else: restart in place once; if that fails, requeue without naming a node; if that fails, stop. If the
    ladder was climbed to its top: restart in place after new steps, else stop.

`decide` is called again for the same incident once the tests of a plan have ended, with what they have found
(`Situation.tested`). The attempt was ended for the tests, so the second plan never says to go on watching.

If a restart with the same command may begin from zero and overwrite what was saved, the job is requeued instead of
restarted within its allocation, if it may be requeued: a requeue runs the script again.

If the loss is bad, the next attempt also goes back to an earlier checkpoint, whichever road it takes.
"""

from __future__ import annotations

import math
from dataclasses import replace

from slurm_robust.core.model import EXIT_STOPPED_FOR_GOOD, Conclusion, FailureCause, Grade, Mode, Plan, Road
from slurm_robust.policy.job import climb, code_versions, consequences, outage, repeats
from slurm_robust.policy.job.eviction import (
    alert_only,
    blamed,
    by_requeue,
    by_tests,
    finding,
    leave_at_fault,
    lost_inside,
    nobody,
    own_code,
)
from slurm_robust.policy.job.ladder import Rung, Symptom
from slurm_robust.policy.job.situation import Situation

_LAUNCHES_BY_REQUEUE = 2
"""How often a requeue is tried if Slurm cannot start the step; after that the site must find the cause."""


def decide(situation: Situation) -> Plan:
    """Choose the road. `ALERT_ONLY` means: alert, and continue to watch."""
    if situation.job.het_job or not situation.job.addressable:
        what = "a het job" if situation.job.het_job else "not addressable as one job"
        return Plan(Road.ALERT_ONLY, f"the job is {what}, which is only alerted on; {finding(situation)}")
    if not _due(situation):
        return Plan(Road.ALERT_ONLY, f"waiting: {finding(situation)}{_missing(situation)}")
    plan = next((plan for rule in _RULES if (plan := rule(situation)) is not None), None)
    if plan is None:
        last = climb.above if climb.climbs(situation) else _no_node
        plan = _with_roll_back(situation, leave_at_fault(situation) or last(situation))
    if plan.road is Road.STOP and situation.climb.climbed:
        plan = replace(plan, reason=f"{plan.reason}. The ladder: {climb.history(situation.climb)}")
    return plan


def _with_roll_back(s: Situation, plan: Plan) -> Plan:
    """Return the plan, changed to also go back to an earlier checkpoint if the loss is bad."""
    bad = s.bad_loss
    if bad is None or bad.why_not or plan.roll_back or plan.road in (Road.STOP, Road.TEST, Road.ALERT_ONLY):
        return plan
    return replace(plan, reason=f"{plan.reason}; {bad.back}", roll_back=True)


def _due(s: Situation) -> bool:
    """Return whether to act: something ended, a node in use is dead, or the verdict or the action limit asks for it.

    The action limit counts even if the stacks are in motion: an endless loop is always in motion and never trains.
    """
    if s.stopped or s.action_limit_reached or set(s.dead_nodes) & s.used_nodes:
        return True
    if climb.slow_tests_due(s) and _fruitless(s) is None:
        return True
    evidence = s.verdict.conclusion is not Conclusion.NONE and s.verdict.corroborated
    return evidence and consequences.due(s.verdict.grade, s.silence)


def _settled(s: Situation) -> bool:
    """Return whether the attempt has ended, or cannot go on: an exception that a rank has raised is certain at once."""
    return s.ended or s.verdict.corroborated


def _no_launch(s: Situation) -> Plan | None:
    """Plan what follows if Slurm could not start the step, such as a job whose GRES Slurm has lost.

    Slurm 22.05 can lose a requeued job's GRES when a node dies at that time; another allocation has GRES of its own. A
    seat would not help: it would hold the nodes whose GRES Slurm counts as used.
    """
    if s.failure is None or s.failure.cause is not FailureCause.SLURM or not s.ended:
        return None
    tried = sum(earlier.cause is FailureCause.SLURM for earlier in s.earlier_failures)
    if s.job.requeueable and s.job.requeued and tried < _LAUNCHES_BY_REQUEUE:
        return Plan(
            Road.PLAIN_REQUEUE, f"{finding(s)}. The job has lost its GRES: plain requeue, for another allocation"
        )
    hint = "a step cannot have GRES that its job does not have (scontrol -d show job tells)"
    return Plan(Road.STOP, f"{finding(s)}; {hint}", exit_code=own_code(s))


def _full_disk(s: Situation) -> Plan | None:
    """Stop if a disk is full: the next attempt would fail in the same way, wherever it runs."""
    if not s.full_disk or not _settled(s):
        return None
    return Plan(Road.STOP, f"{finding(s)}. No restart and no requeue helps: {s.full_disk}", exit_code=own_code(s))


def _outage(s: Situation) -> Plan | None:
    """Wait in the allocation during an outage: another node would not help, and the allocation is worth the minutes."""
    if s.failure is None or s.failure.cause is not FailureCause.SHARED or not _settled(s) or s.dead_nodes:
        return None
    before = outage.attempts_lost(s.earlier_failures)
    pause_s, waited_s = outage.pause_s(before, s.outage_wait_s), outage.waited_s(before)
    if pause_s <= 0:
        return None
    limit = f"limit {s.outage_wait_s:g} s" + ("" if s.at_stake else " before the training's first step")
    so_far = f" (waited so far: {waited_s:g} s; {limit})" if before else ""
    reason = f"{finding(s)}. Wait {pause_s:g} s{so_far}"
    if s.outside and not s.job.requeueable:
        return alert_only(s, finding(s))
    plan = _in_place(s, reason, ", then restart in place")
    # The outage blames no node, but a node with a fault of its own is not used again.
    return replace((leave_at_fault(s) if s.faulty_nodes else None) or plan, pause_s=pause_s)


def _other_code(s: Situation) -> Plan | None:
    """Run another version if the code is at fault, or if an update waits for a failure; no node is blamed."""
    if s.outside or set(s.dead_nodes) & s.used_nodes:
        return None
    program = s.ended and s.failure is not None and s.failure.cause is FailureCause.PROGRAM
    own_error = program or s.verdict.conclusion is Conclusion.USER_CODE
    chosen = code_versions.after_failure(s.code, s.failure, own_error=own_error, new_step=not s.fruitless)
    if chosen is None:
        return None
    reason = f"{chosen.reason}. No node is blamed; {finding(s)}"
    plan = _in_place(s, reason, ": restart in place")
    # A node that has reported a fault of its own is not used again, for that reason alone.
    reported = leave_at_fault(replace(s, verdict=replace(s.verdict, suspects=()))) if s.faulty_nodes else None
    plan = replace(reported or plan, code=chosen.number)
    return climb.marked(s, plan, Rung.OTHER_CODE) if chosen.back else plan


def _weak(s: Situation) -> Plan | None:
    """Plan for weak evidence: a rank is held by something that a healthy program may wait for, too."""
    weak = s.verdict.grade is Grade.WEAK and s.verdict.conclusion is Conclusion.CULPRIT
    if not weak or s.stopped or s.faulty_nodes or set(s.dead_nodes) & s.used_nodes or _fruitless(s) is not None:
        return None
    why = f"{finding(s)}; weak evidence costs no node"
    if s.outside and s.action_limit_reached:
        # Otherwise the hang would never end: the limit counts whatever the stacks show.
        return by_requeue(s, why, ", no node named") if s.job.requeueable else alert_only(s, why)
    if s.outside:
        until = "until the action limit" if s.job.requeueable else "at all, and the job may not be requeued"
        return Plan(Road.ALERT_ONLY, f"{why}. Nothing is done {until}: the step is not ours to start")
    if s.restarts_tried > 0:
        return None  # it has come again: the nodes are tested
    return _in_place(s, why, ". Restart in place, once")


def _own_code(s: Situation) -> Plan | None:
    """Stop with the program's exit code if only that code is known: another run could do the program's work twice."""
    bare = s.ended and s.failure is not None and s.failure.bare_exit
    if not bare or not s.exit_code or s.bad_loss is not None or s.faulty_nodes or blamed(s):
        return None
    reason = f"{finding(s)}; nothing but the exit code is known, which may mean something to the script"
    return Plan(Road.STOP, f"{reason}: it is passed on, and nothing is started again", exit_code=s.exit_code)


def _ladder(s: Situation) -> Plan | None:
    """Plan tests, and the rungs above them, if no evidence names a node."""
    hard_limit = s.fruitless >= 2 * s.fruitless_limit
    if not climb.climbs(s) or hard_limit or _launches_spent(s):
        return None
    plan = leave_at_fault(s) if by_tests(s) else None
    slow = climb.symptom(s) is Symptom.SLOW
    if plan is not None and plan.road is Road.RESTART_IN_PLACE:
        plan = climb.marked(s, plan, Rung.REATTEMPT)
    if plan is None or (slow and plan.road is Road.STOP):
        of_loss = s.bad_loss is not None and s.ended
        better = not slow and any(rule(s) is not None for rule in _KNOWN_ENDS)
        if better and not of_loss:
            return None
        hopeless = s.bad_loss is not None and s.ended and bool(s.bad_loss.why_not) and (s.bad_loss.spent or better)
        plan = climb.next_rung(s, attempts=_fruitless(s) is None and not hopeless)
    return _with_roll_back(s, plan) if plan is not None else None


def _fruitless(s: Situation) -> Plan | None:
    if s.trains:
        return None  # it may be on its way to a new step
    limit, unrelated = s.fruitless_limit, repeats.unrelated_before(s.failure, s.earlier_failures)
    if s.fruitless >= 2 * limit or s.fruitless - unrelated >= limit:
        reason = f"{s.fruitless} attempts in a row without a new step (limit {limit})"
    elif _launches_spent(s):
        reason = f"{s.failed_launches} launches of this job ended without a new step within an hour"
        reason += f" (limit {s.failed_launches_limit}, supervise.fruitless_launches_per_hour)"
    else:
        return None
    reason += f"; last: {finding(s)}"
    return Plan(Road.STOP, reason, exit_code=EXIT_STOPPED_FOR_GOOD)


def _launches_spent(s: Situation) -> bool:
    return 0 < s.failed_launches_limit <= s.failed_launches


def _bad_loss(s: Situation) -> Plan | None:
    """Go back or stop if, as far as is known, the bad loss ended the attempt: the same start would end the same way."""
    bad = s.bad_loss
    if bad is None or not s.ended or blamed(s):
        return None
    if not bad.why_not:
        return Plan(Road.RESTART_IN_PLACE, f"{finding(s)}; {bad.back}", roll_back=True)
    if bad.spent:
        return Plan(Road.STOP, f"{finding(s)}; {bad.why}, and {bad.why_not}", exit_code=own_code(s))
    return None


def _own_end(s: Situation) -> Plan | None:
    if s.verdict.conclusion is Conclusion.USER_CODE:
        if _met_by_chance(s):
            return _in_place(s, f"{finding(s)}; no node is blamed", ". It trained before: restart in place, once")
        return Plan(Road.STOP, f"{finding(s)}; no node is blamed", exit_code=own_code(s))
    if s.ended and s.verdict.conclusion is Conclusion.NONE and not blamed(s):
        code = EXIT_STOPPED_FOR_GOOD if s.exit_code is None else s.exit_code
        return Plan(Road.STOP, f"{finding(s)}; nothing to recover from", exit_code=code)
    return None


def _met_by_chance(s: Situation) -> bool:
    """Return whether ranks of a training that made new steps have lost each other: that may not happen again."""
    return s.verdict.grade is Grade.STRONG and not (s.stopped or s.outside or s.restarts_tried or s.fruitless)


def _repeated_elsewhere(s: Situation) -> Plan | None:
    """Stop if the same failure occurred on other nodes: it comes from the program or its data, not from a node."""
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
    return Plan(Road.STOP, f"{reason}; {finding(s)}", exit_code=own_code(s))


def _no_node(s: Situation) -> Plan:
    why = finding(s)
    if s.failure is not None and s.failure.cause is FailureCause.SHARED:
        waited_s = outage.waited_s(outage.attempts_lost(s.earlier_failures))
        why += f"; it was waited for, {min(waited_s, s.outage_wait_s):g} s in all" if waited_s else ""
    why = nobody(s, why)
    if s.outside and s.restarts_tried == 0:
        if not s.job.requeueable:
            return alert_only(s, why)
        return by_requeue(s, why, ", no node named")
    if s.restarts_tried < 2 and (lost := lost_inside(s)):
        return by_requeue(s, why, f", no node named: {lost}")
    if s.restarts_tried == 0:
        return Plan(Road.RESTART_IN_PLACE, f"{why}: restart in place on the same nodes")
    if s.job.requeueable and s.restarts_tried == 1:
        return by_requeue(s, f"{why}, and a restart in place did not help", ", no node named")
    reason = f"{why}, and {s.restarts_tried} restarts in place did not help"
    return Plan(Road.STOP, reason, exit_code=own_code(s))


def _in_place(s: Situation, why: str, then: str) -> Plan:
    """Return a plan to restart in place, or to requeue if a restart in place could not work or would lose something."""
    lost = "the step is not ours to start" if s.outside else lost_inside(s)
    if lost:
        return by_requeue(s, why, f", no node named: {lost}")
    return Plan(Road.RESTART_IN_PLACE, f"{why}{then}")


def _missing(s: Situation) -> str:
    """Return what is done next, and when; in observe mode, what would be done."""
    missing = s.verdict.missing
    after_s = consequences.patience_s(s.verdict.grade, s.silence) if s.silence is not None else math.inf
    if s.verdict.corroborated and math.isfinite(after_s):
        then = f"acted on after {after_s:.0f} s without progress"
    else:
        then = f"acting needs {'; '.join(missing)}, or the action limit" if missing else "or until the action limit"
    if s.continue_after_s:
        cont = f"continued (SIGCONT) after {s.continue_after_s:.0f} s without progress"
        then = f"{cont}; if that does not help, {then}"
    return f" (observe mode: nothing is done; in mode act: {then})" if s.mode is Mode.OBSERVE else f" ({then})"


_KNOWN_ENDS = (_own_end, _repeated_elsewhere)
"""Rules that know better than any test."""
_RULES = (_no_launch, _full_disk, _outage, _other_code, _weak, _own_code, _ladder, _fruitless, _bad_loss, *_KNOWN_ENDS)
"""In this order; the first that has a plan decides."""
