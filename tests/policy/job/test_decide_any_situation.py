"""decide: what holds in every situation."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from situations import NODES, REQUEUES

from slurm_robust.core.model import Conclusion, Failure, FailureCause, Grade, Mode, Road, Suspect, Verdict
from slurm_robust.policy.job.consequences import FIRST_STEP, Pauses, Silence
from slurm_robust.policy.job.decide import decide
from slurm_robust.policy.job.eviction import max_evictions
from slurm_robust.policy.job.situation import JobFacts, Situation

names = st.sampled_from([*NODES, "elsewhere"])


suspects = st.builds(Suspect, names, st.just((0,)), st.floats(0, 1), st.just("because"), st.booleans())


verdicts = st.builds(
    Verdict,
    st.sampled_from(Conclusion),
    st.sampled_from(["", "a reason"]),
    st.lists(suspects, max_size=6).map(tuple),
    corroborated=st.booleans(),
    grade=st.sampled_from(Grade),
)


silences = st.builds(
    Silence,
    st.floats(0, 4000),
    st.sampled_from([FIRST_STEP, "train", "evaluate"]),
    st.builds(Pauses, st.dictionaries(st.sampled_from([FIRST_STEP, "train", "evaluate"]), st.floats(0, 900))),
)


failures = st.builds(
    Failure, st.sampled_from(["a", "b"]), st.lists(names, max_size=2).map(tuple), st.sampled_from(FailureCause)
)


some_nodes = st.lists(names, max_size=5, unique=True).map(tuple)


situations = st.builds(
    Situation,
    verdicts,
    st.just(NODES),
    st.integers(1, 5),
    some_nodes,
    some_nodes,
    some_nodes,
    names,
    st.frozensets(names, max_size=2),
    st.booleans(),
    st.none() | st.integers(0, 255),
    st.none() | failures,
    st.lists(failures, max_size=3).map(tuple),
    st.integers(0, 3),
    st.integers(0, 4),
    st.integers(1, 4),
    st.sampled_from([True, False, None]),
    st.booleans(),
    st.booleans(),
    st.builds(JobFacts, st.booleans(), st.booleans(), st.booleans(), st.booleans()),
    outside=st.booleans(),
    older_failures=st.lists(failures, max_size=2).map(tuple),
    full_disk=st.sampled_from(["", "make room in /ckpt"]),
    over=st.booleans(),
    resumes=st.sampled_from([True, False, None]),
    at_stake=st.booleans(),
    faulty_nodes=st.dictionaries(names, st.just("it reports a fault"), max_size=3),
    silence=st.none() | silences,
)


@given(situations)
def test_whatever_the_situation(s: Situation) -> None:
    """The rules that no situation may break."""
    plan = decide(s)
    assert plan.reason.strip()
    assert set(plan.evict) <= set(NODES)
    # A spare that is left out costs the training nothing.
    assert len(s.used_nodes & set(plan.evict)) <= max_evictions(len(NODES))
    assert len(set(plan.evict)) == len(plan.evict)
    assert (plan.exit_code is None) == (plan.road is not Road.STOP)
    if plan.evict:
        assert plan.road in (Road.SPARE_IN_ALLOCATION, *REQUEUES)
    else:
        assert plan.road is not Road.SPARE_IN_ALLOCATION
    if s.job.het_job or not s.job.addressable:
        assert plan.road is Road.ALERT_ONLY
    if not s.job.requeueable:
        assert plan.road not in REQUEUES
    if s.outside:
        assert plan.road is not Road.RESTART_IN_PLACE
    if s.verdict.conclusion is not Conclusion.CULPRIT or s.verdict.grade in (Grade.WEAK, Grade.NONE):
        assert set(plan.evict) <= {*s.dead_nodes, *s.faulty_nodes}
    if s.verdict.conclusion is Conclusion.USER_CODE:
        lost_each_other = s.verdict.grade is Grade.STRONG and not s.ended and not s.fruitless
        assert plan.road in (Road.STOP, Road.ALERT_ONLY) or lost_each_other
        assert plan.evict == ()
    refused_launch = s.failure is not None and s.failure.cause is FailureCause.SLURM and s.ended
    if not s.resumes and s.at_stake and s.job.requeueable:
        assert plan.road not in (Road.RESTART_IN_PLACE, Road.SPARE_IN_ALLOCATION)
    if s.fruitless >= s.fruitless_limit and not refused_launch and not s.full_disk:
        assert plan.road is Road.ALERT_ONLY or (plan.road, plan.exit_code) == (Road.STOP, 93)
    if plan.road is Road.SPARE_IN_ALLOCATION:
        assert len(set(NODES) - set(plan.evict)) >= s.training_node_count
        assert not set(plan.evict) & s.excluded_named


@given(situations)
def test_observe_computes_the_same_plan(s: Situation) -> None:
    """What observe mode shows is what act mode would do; only what is waited for is told in other words."""
    observed, acted = decide(replace(s, mode=Mode.OBSERVE)), decide(replace(s, mode=Mode.ACT))
    reason = observed.reason.replace("observe mode: nothing is done; in mode act: ", "")
    assert replace(observed, reason=reason) == acted


@given(situations)
def test_nothing_is_done_without_cause(s: Situation) -> None:
    """No end, no dead node, no corroboration, limit not reached: nothing."""
    calm = replace(
        s, ended=False, dead_nodes=(), action_limit_reached=False, verdict=replace(s.verdict, corroborated=False)
    )
    assert decide(calm).road is Road.ALERT_ONLY
