"""Plans what is done next if no evidence names a node. Pure.

`decide` calls `next_rung` at its place among the rules; `open_rungs` says which rungs are open. Each plan says why its
rung comes now, and which rung would follow.
"""

from __future__ import annotations

from dataclasses import replace

from slurm_robust.core.model import Conclusion, Failure, FailureCause, Plan, Road
from slurm_robust.core.text import shortened
from slurm_robust.policy.job import code_versions
from slurm_robust.policy.job.eviction import (
    by_evidence,
    by_requeue,
    by_tests,
    finding,
    leave,
    lost_inside,
    nobody,
    own_code,
    reported,
)
from slurm_robust.policy.job.ladder import LadderMemory, Rung, Symptom, TestOutcome, joined_names
from slurm_robust.policy.job.open_rungs import TABLE, OpenRung, group_to_leave, higher, open_now, standing_apart
from slurm_robust.policy.job.situation import Situation

_UNEXPLAINED = (FailureCause.EITHER, FailureCause.WORDS)
_OF_NODES = (
    "", "cuda_error", "rdma_error", "nccl_error", "crashed", "killed",
    "gpu_driver", "gpu_lost", "gpu_ecc", "nvlink", "host_hardware",
)  # fmt: skip
"""Categories of messages whose cause tests of nodes may find; empty if there is no message (a signal, a hang). After an
unspecific exception of the program, a missing file or a port in use, training is tried again without tests.
"""
_OUT_OF_MEMORY = "died: oom"


def symptom(s: Situation) -> Symptom | None:
    """Return what the incident looks like; None if evidence names a node, or a cause that tests of nodes cannot find.

    The symptom does not depend on what tests have found.
    """
    wanted = s.ended and s.verdict.conclusion is Conclusion.NONE  # cancelled, preempted, out of time, or finished
    if wanted or s.full_disk or by_evidence(s) or reported(s):
        return None
    if s.bad_loss is not None:
        return Symptom.BAD_LOSS
    unexplained = s.failure is None or _unexplained(s.failure)
    open_verdict = s.verdict.conclusion in (Conclusion.UNDETERMINED, Conclusion.CULPRIT)
    if s.ended:
        return Symptom.CRASH if open_verdict and unexplained and s.failure is not None else None
    if s.action_limit_reached or (open_verdict and s.verdict.corroborated):
        return Symptom.HANG if unexplained and s.verdict.conclusion is not Conclusion.USER_CODE else None
    return Symptom.SLOW if s.slow else None


def _unexplained(failure: Failure) -> bool:
    """Return whether tests of nodes may find the cause of the failure."""
    known = failure.cause not in _UNEXPLAINED or failure.signature == _OUT_OF_MEMORY
    return not known and failure.category in _OF_NODES


def climbs(s: Situation) -> bool:
    """Return whether the ladder is used: it is switched on, possible for this job, and the incident has a symptom."""
    return s.ladder_options.enabled and not s.outside and symptom(s) is not None


def next_rung(s: Situation, *, attempts: bool) -> Plan | None:
    """Return the plan of the next rung; None if no rung is left. Without `attempts`, only rungs that cost none."""
    which = symptom(s)
    if which is None or not climbs(s):
        return None
    step = next(open_now(s, which, s.climb, attempts=attempts), None)
    return _plan(s, which, step) if step is not None else None


def slow_tests_due(s: Situation) -> bool:
    """Return whether a training that is slow, and has no other symptom, is to be tested."""
    step = next(open_now(s, Symptom.SLOW, s.climb, attempts=True), None) if climbs(s) else None
    return symptom(s) is Symptom.SLOW and step is not None and bool(step.tests)


def above(s: Situation) -> Plan:
    """Return the plan if no rung is left: training goes on as long as it makes new steps, else it stops."""
    if s.fruitless == 0:
        why = f"{_why(s)}; no rung of the ladder is left ({history(s.climb)}), and the attempt made new steps"
        return _again(s, why, "Restart in place")
    return Plan(Road.STOP, f"{_why(s)}; no rung of the ladder is left", exit_code=own_code(s))


def marked(s: Situation, plan: Plan, rung: Rung) -> Plan:
    """Return the plan marked as this rung if the rung is still open; another rule has made the plan."""
    which = symptom(s)
    if which is None or not climbs(s) or rung not in TABLE[which].then or not higher(rung, s.climb):
        return plan
    return replace(plan, rung=rung.value)


def after_plan(s: Situation, plan: Plan, outcome: TestOutcome | None = None) -> LadderMemory:
    """Return what is remembered of the ladder once `plan`, which was decided for this situation, is carried out.

    For a plan with tests call it twice: before they begin, without an outcome, and with it at their end.
    """
    return s.climb.climbed_by(plan, symptom(s), outcome, s.now_s, found="" if plan.tests else _name(plan))


def history(memory: LadderMemory) -> str:
    """Return a text with each rung of this climb, and its result."""
    told = []
    for climbed in memory.climbed:
        what = climbed.found or f"{joined_names(climbed.tests)} did not come to an end"
        told.append(what if climbed.tests else f"{what} did not help")
    return "; ".join(told) or "no rung was possible"


# -- the plans --------------------------------------------------------------------------------------------------------


def _plan(s: Situation, which: Symptom, step: OpenRung) -> Plan:
    plan = replace(_bare_plan(s, step), rung=step.rung.value)
    then = _what_follows(s, which, plan)
    when = "if they find nothing" if step.rung in (Rung.TEST, Rung.TEST_APART) else "if it comes again"
    when = "if it finds nothing" if step.rung is Rung.REPLAY else when
    return replace(plan, reason=f"{plan.reason}; {when}: {then}")


def _bare_plan(s: Situation, step: OpenRung) -> Plan:
    why = _why(s)
    if step.rung is Rung.LEAVE_GROUP:
        return _leave_group(s, why)
    if step.tests:
        return Plan(Road.TEST, f"{why}. {_test_words(s, step)}", tests=step.tests, test_nodes=step.nodes)
    if step.rung is Rung.OTHER_CODE:
        chosen = code_versions.unexplained(s.code, s.failure)
        assert chosen is not None
        plan = _again(s, f"{why}. {chosen.reason}", "Restart in place")
        return replace(plan, code=chosen.number)
    if step.rung is Rung.REQUEUE:
        return by_requeue(s, f"{nobody(s, finding(s))}; {history(s.climb)}", ", no node named")
    return _again(s, why, "Restart in place on the same nodes, once")


def _again(s: Situation, why: str, how: str) -> Plan:
    """Return a plan for another attempt on the same nodes; by a requeue if the command alone may start from zero."""
    bad = s.bad_loss
    if bad is not None and s.ended and not bad.why_not:
        return Plan(Road.RESTART_IN_PLACE, f"{why}. {how}; {bad.back}", roll_back=True)
    if lost := lost_inside(s):
        return by_requeue(s, why, f", no node named: {lost}")
    return Plan(Road.RESTART_IN_PLACE, f"{why}. {how}")


def _leave_group(s: Situation, why: str) -> Plan:
    group = group_to_leave(s)
    names = shortened(", ".join(group), 60)
    plan = leave(s, dict.fromkeys(group, ""))
    _, _, road = plan.reason.partition(". ")
    return replace(plan, reason=f"{why}. {names} are the parallel group that stands apart (ladder.over_evict). {road}")


def _why(s: Situation) -> str:
    """Return a text with the incident, and what its tests have found."""
    slow = s.slow if symptom(s) is Symptom.SLOW else ""
    why = "; ".join([nobody(s, slow or finding(s)), *(outcome.sentence for outcome in s.tested)])
    if any(outcome.failed or outcome.links for outcome in s.tested):
        alone = "no road is left without them" if by_tests(s) else "too many for a cause of their own"
        return f"{why}; {alone}, so none is left out"
    return f"{why}; what the tests could not tell speaks against no node" if any(o.open for o in s.tested) else why


def _test_words(s: Situation, step: OpenRung) -> str:
    if step.rung is Rung.REPLAY:
        return f"Replay the training on groups of the {len(step.nodes)} nodes"
    if step.rung is Rung.TEST:
        return f"Test {joined_names(step.tests)} on {len(step.nodes)} nodes"
    apart = standing_apart(s)
    others = len(step.nodes) - len(apart)
    return (
        f"Test {joined_names(step.tests)} on {shortened(', '.join(apart), 60)}, which stand apart, and {others} others"
    )


def _what_follows(s: Situation, which: Symptom, plan: Plan) -> str:
    """Return words for the rung above this one, as far as it is known now."""
    memory = s.climb.climbed_by(plan, which, None, s.now_s)
    step = next(open_now(s, which, memory, attempts=True), None)
    if step is None:
        return "nothing more is tried" if which is Symptom.SLOW else "the job is stopped, unless it makes new steps"
    words = {
        Rung.REATTEMPT: "the same again, once",
        Rung.OTHER_CODE: f"version {s.code.older} of the code",
        Rung.REPLAY: "a replay",
        Rung.REQUEUE: "a requeue with no node named",
    }
    return words.get(step.rung) or f"{joined_names(step.tests)} on {len(step.nodes)} nodes"


def _name(plan: Plan) -> str:
    """Return words for a rung without tests."""
    words = {
        Rung.REATTEMPT.value: "the same again",
        Rung.OTHER_CODE.value: f"version {plan.code} of the code",
        Rung.REQUEUE.value: "a requeue with no node named",
        Rung.LEAVE_GROUP.value: f"leaving {shortened(', '.join(plan.evict), 60)}",
    }
    return words.get(plan.rung, "")
