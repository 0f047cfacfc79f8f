from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.model import Conclusion, Failure, FailureCause, Mode, Road, Suspect, Verdict
from slurm_robust.policy.job.decide import JobFacts, Situation, decide, max_evictions, with_dirty

NODES = tuple(f"n{n}" for n in range(1, 6))
REQUEUES = (Road.SEAT, Road.OWNER_REQUEUE, Road.PLAIN_REQUEUE)


def culprit(*nodes: str, infrastructure: bool = True, corroborated: bool = True) -> Verdict:
    """A verdict that names these nodes."""
    suspects = tuple(Suspect(node, (0,), 0.9, f"rank 0 on {node} is stopped", infrastructure) for node in nodes)
    return Verdict(Conclusion.CULPRIT, "; ".join(s.why for s in suspects), suspects, corroborated=corroborated)


UNDETERMINED = Verdict(Conclusion.UNDETERMINED, "all ranks wait at the same place", missing=("pairwise tests",))
USER_CODE = Verdict(Conclusion.USER_CODE, "rank 3 raised TypeError")
FINISHED = Verdict(Conclusion.NONE, "every rank ended with exit code 0")


def situation(verdict: Verdict, **more: object) -> Situation:
    """Five nodes, four of them train, the fifth is a healthy spare; the daemon answers."""
    base = Situation(verdict, NODES, 4, NODES[:4], healthy_spares=("n5",), batch_node="n1", daemon=True)
    return replace(base, **more)  # type: ignore[arg-type]


def test_spare_in_the_allocation() -> None:
    """A suspect and a spare: leave the suspect, stay in the allocation, and say all three."""
    plan = decide(situation(culprit("n2")))
    assert (plan.road, plan.evict) == (Road.SPARE_IN_ALLOCATION, ("n2",))
    for word in ("n2", "stopped", "n5", "allocation"):
        assert word in plan.reason


@pytest.mark.parametrize(
    ("more", "road", "says"),
    [
        ({"healthy_spares": ()}, Road.SEAT, "3 healthy nodes for 4"),
        ({"healthy_spares": (), "daemon": None}, Road.SEAT, "if the site's daemon answers"),
        ({"healthy_spares": (), "daemon": False, "user_daemon": True}, Road.OWNER_REQUEUE, "owner"),
        ({"healthy_spares": (), "daemon": None, "user_daemon": True}, Road.OWNER_REQUEUE, "owner"),
        ({"healthy_spares": (), "daemon": False}, Road.PLAIN_REQUEUE, "Plain requeue"),
        ({"excluded_named": frozenset({"n2"})}, Road.SEAT, "names n2"),
        ({"dead_nodes": ("n2",)}, Road.SEAT, "no --no-kill"),
        ({"dead_nodes": ("n2",), "job": JobFacts(survives_node_failure=True)}, Road.SPARE_IN_ALLOCATION, "dead"),
        (
            {"dead_nodes": ("n1",), "job": JobFacts(survives_node_failure=True), "verdict": culprit("n1")},
            Road.SEAT,
            "batch script's own node n1",
        ),
    ],
)
def test_roads_for_a_suspect(more: dict[str, object], road: Road, says: str) -> None:
    """Each road has its condition, and the plan says why it is not a better one."""
    verdict = more.pop("verdict", None) or culprit("n2")
    assert isinstance(verdict, Verdict)
    plan = decide(situation(verdict, **more))
    assert plan.road is road
    assert plan.evict == tuple(s.node for s in verdict.suspects)
    assert says in plan.reason


def test_live_batch_node_is_left_by_the_ranks_only() -> None:
    """Steps may run elsewhere as long as the batch host lives."""
    assert decide(situation(culprit("n1"))).road is Road.SPARE_IN_ALLOCATION


def test_unhealthy_spare_does_not_count() -> None:
    """A fifth node that does not answer is no place to go."""
    plan = decide(situation(culprit("n2"), healthy_spares=()))
    assert plan.road is Road.SEAT


def test_training_nodes_not_given() -> None:
    """Where only their number is known, a node that neither trains nor answers does not count as a place to go."""
    assert decide(situation(culprit("n2"), healthy_spares=(), training_nodes=())).road is Road.SEAT
    assert decide(situation(culprit("n2"), training_nodes=())).road is Road.SPARE_IN_ALLOCATION


def test_dead_spare_disturbs_nobody() -> None:
    """A node that does not train may die without a restart."""
    moving = Verdict(Conclusion.NONE, "training moves")
    plan = decide(situation(moving, healthy_spares=(), dead_nodes=("n5",)))
    assert plan.road is Road.ALERT_ONLY


@pytest.mark.parametrize("verdict", [culprit("n2", corroborated=False), UNDETERMINED, FINISHED, USER_CODE])
def test_waits_below_the_limit(verdict: Verdict) -> None:
    """Suspicion alone costs nothing but a capture."""
    plan = decide(situation(verdict))
    assert (plan.road, plan.evict) == (Road.ALERT_ONLY, ())
    assert plan.reason.startswith("waiting")


def test_waiting_says_what_is_wanted() -> None:
    """The alert names the evidence that would let it act."""
    assert "pairwise tests" in decide(situation(UNDETERMINED)).reason


def test_what_moves_and_trains_nothing_is_ended_at_the_limit_only() -> None:
    """An endless loop moves all the time: left alone before the site's limit, started anew in place past it."""
    moving = Verdict(Conclusion.NONE, "rank 0 moves outside the collective")
    assert decide(situation(moving)).road is Road.ALERT_ONLY
    plan = decide(situation(moving, action_limit_reached=True))
    assert (plan.road, plan.evict) == (Road.RESTART_IN_PLACE, ())


def test_uncorroborated_suspect_at_the_limit() -> None:
    """The site's limit decides where evidence did not."""
    plan = decide(situation(culprit("n2", corroborated=False), action_limit_reached=True))
    assert (plan.road, plan.evict) == (Road.SPARE_IN_ALLOCATION, ("n2",))


def test_user_error_stops_with_its_own_code() -> None:
    """A TypeError costs no node and no restart."""
    plan = decide(situation(USER_CODE, ended=True, exit_code=7))
    assert (plan.road, plan.exit_code, plan.evict) == (Road.STOP, 7, ())
    assert "no node is blamed" in plan.reason


@pytest.mark.parametrize(("code", "returned"), [(0, 0), (143, 143), (None, 93)])
def test_ends_that_need_no_recovery(code: int | None, returned: int) -> None:
    """A normal end and a cancelled one pass their exit code on; an unknown one is never told as success."""
    plan = decide(situation(FINISHED, ended=True, exit_code=code))
    assert (plan.road, plan.exit_code) == (Road.STOP, returned)


def test_rank_only_fault_restarts_in_place() -> None:
    """A killed rank with nothing against its node: the same nodes once more."""
    plan = decide(situation(culprit("n2", infrastructure=False), ended=True, exit_code=137))
    assert (plan.road, plan.evict) == (Road.RESTART_IN_PLACE, ())


@pytest.mark.parametrize(
    ("cause", "evict"), [(FailureCause.EITHER, ("n2",)), (FailureCause.NODE, ("n2",)), (FailureCause.PROGRAM, ())]
)
def test_same_failure_on_the_same_node(cause: FailureCause, evict: tuple[str, ...]) -> None:
    """A second crash on one node makes the node suspect; a second exit code, which moves with the rank, does not."""
    failure = Failure("died: SIGSEGV", ("n2",), cause)
    plan = decide(
        situation(
            culprit("n2", infrastructure=False),
            ended=True,
            failure=failure,
            earlier_failures=(failure,),
            restarts_in_place=1,
        )
    )
    assert plan.evict == evict


def test_same_failure_on_other_nodes() -> None:
    """A hang that came back elsewhere is the program's, though this verdict names a node."""
    plan = decide(
        situation(
            culprit("n3"),
            exit_code=5,
            failure=Failure("hang at f", ("n3",)),
            earlier_failures=(Failure("hang at f", ("n2",)),),
        )
    )
    assert (plan.road, plan.exit_code, plan.evict) == (Road.STOP, 5, ())
    assert "n2" in plan.reason
    assert "n3" in plan.reason


@pytest.mark.parametrize(
    "earlier", [Failure("hang at g", ("n2",)), Failure("hang at f", ("n3",)), Failure("hang at f", ())]
)
def test_not_the_same_failure(earlier: Failure) -> None:
    """Another place, the same node, or no node known: no reason to call it the program's."""
    plan = decide(situation(culprit("n3"), failure=Failure("hang at f", ("n3",)), earlier_failures=(earlier,)))
    assert plan.evict == ("n3",)


def test_two_nodes_that_die_are_two_nodes() -> None:
    """Silent nodes one after the other are no program error."""
    plan = decide(
        situation(
            culprit("n3"),
            failure=Failure("node: silent", ("n3",), FailureCause.NODE),
            earlier_failures=(Failure("node: silent", ("n2",), FailureCause.NODE),),
        )
    )
    assert plan.evict == ("n3",)


@pytest.mark.parametrize("verdict", [UNDETERMINED, culprit("n2", infrastructure=False)])
@pytest.mark.parametrize(("resumes", "says"), [(None, "nothing shows"), (False, "started from zero before")])
def test_a_command_that_may_start_from_zero_is_not_restarted_in_place(
    verdict: Verdict, resumes: bool | None, says: str
) -> None:
    """A requeue runs the script again, which may choose the checkpoint; what was saved is worth two minutes."""
    at_risk = situation(verdict, ended=True, exit_code=1, resumes=resumes)
    plan = decide(at_risk)
    assert plan.road is Road.SEAT
    assert says in plan.reason
    assert "runs the script again" in plan.reason
    assert decide(replace(at_risk, at_stake=False)).road is Road.RESTART_IN_PLACE, "nothing was done yet"
    assert decide(replace(at_risk, job=JobFacts(requeueable=False))).road is Road.RESTART_IN_PLACE, "no other road"
    assert decide(replace(at_risk, resumes=True)).road is Road.RESTART_IN_PLACE


def test_a_spare_is_no_place_for_a_command_that_may_start_from_zero() -> None:
    """Without its suspect the job goes on elsewhere, by the script; a cause that most nodes share is no other case."""
    plan = decide(situation(culprit("n2"), resumes=None))
    assert (plan.road, plan.evict) == (Road.SEAT, ("n2",))
    assert "runs the script again" in plan.reason
    assert decide(situation(culprit("n1", "n2", "n3"), resumes=None)).road is Road.SEAT


def test_undetermined_escalates() -> None:
    """In place, then requeued without a name, then stopped; never a node."""
    plans = [decide(situation(UNDETERMINED, ended=True, exit_code=1, restarts_in_place=n)) for n in range(3)]
    assert [p.road for p in plans] == [Road.RESTART_IN_PLACE, Road.SEAT, Road.STOP]
    assert all(p.evict == () for p in plans)
    assert plans[-1].exit_code == 1


def test_more_suspects_than_half() -> None:
    """A cause that most nodes share evicts none of them."""
    plan = decide(situation(culprit("n1", "n2", "n3")))
    assert (plan.road, plan.evict) == (Road.RESTART_IN_PLACE, ())
    plan = decide(situation(culprit("n1", "n2", "n3"), restarts_in_place=1))
    assert (plan.road, plan.evict) == (Road.SEAT, ())


def test_not_requeueable() -> None:
    """No place inside and no requeue: once in place, then stop and say what to type."""
    facts = JobFacts(requeueable=False)
    plan = decide(situation(culprit("n2"), healthy_spares=(), job=facts))
    assert (plan.road, plan.evict) == (Road.RESTART_IN_PLACE, ())
    plan = decide(situation(culprit("n2"), healthy_spares=(), job=facts, restarts_in_place=1))
    assert plan.road is Road.STOP
    assert "--requeue" in plan.reason


@pytest.mark.parametrize("verdict", [UNDETERMINED, culprit("n2"), culprit("n1", "n2", "n3")])
def test_a_watch_from_outside_starts_no_step_anew(verdict: Verdict) -> None:
    """`sbatch --robust` and `srobust attach --act`: a requeue; where the job cannot be requeued, words alone."""
    outside = situation(verdict, healthy_spares=(), action_limit_reached=True, outside=True)
    assert decide(outside).road is Road.SEAT
    plan = decide(replace(outside, job=JobFacts(requeueable=False)))
    assert (plan.road, plan.evict) == (Road.ALERT_ONLY, ())
    assert "the job may not be requeued" in plan.reason
    assert "in place" not in plan.reason


def test_fruitless_attempts_stop() -> None:
    """Three without a new step: exit 93, and what the last one was."""
    plan = decide(situation(culprit("n2"), fruitless=3))
    assert (plan.road, plan.exit_code) == (Road.STOP, 93)
    assert "stopped" in plan.reason


def test_launches_of_the_job_that_come_to_nothing_stop_it() -> None:
    """Whichever runs of the script they were: exit 93, and the key to raise."""
    plan = decide(situation(culprit("n2"), failed_launches=30, failed_launches_limit=30))
    assert (plan.road, plan.exit_code) == (Road.STOP, 93)
    assert "supervise.fruitless_launches_per_hour" in plan.reason
    assert decide(situation(culprit("n2"), failed_launches=29, failed_launches_limit=30)).road is not Road.STOP


def test_single_node_may_be_left() -> None:
    """Half of one node is none; one may always go."""
    assert [max_evictions(n) for n in (1, 2, 3, 4, 9)] == [1, 1, 1, 2, 4]


def test_nodes_that_did_not_get_clean_are_left_as_long_as_they_are_few() -> None:
    """A file system that is away leaves processes in D state everywhere: not the nodes' own fault."""
    assert with_dirty((), (), 1) == ()
    assert with_dirty(("n1",), {"n3": "processes [5] outlive SIGKILL"}, 4) == ("n1", "n3")
    assert with_dirty(("n1",), {"n2": "", "n3": ""}, 4) is None
    assert with_dirty(("n1", "n2"), (), 2) == ("n1", "n2"), "nothing to add to what was decided before"


names = st.sampled_from([*NODES, "elsewhere"])


def test_a_launch_that_slurm_refused_is_no_attempt_of_the_program() -> None:
    """A requeued job has lost its GRES: another allocation, a few times. Any other asked for what it does not have."""
    refused = Failure("died: launch", (), FailureCause.SLURM)
    again = JobFacts(requeued=True)
    for fruitless, earlier, road in ((3, 0, Road.PLAIN_REQUEUE), (0, 1, Road.PLAIN_REQUEUE), (0, 2, Road.STOP)):
        lost = situation(UNDETERMINED, ended=True, exit_code=1, failure=refused, job=again, fruitless=fruitless)
        plan = decide(replace(lost, earlier_failures=(refused,) * earlier))
        assert (plan.road, plan.evict) == (road, ())
    first = decide(situation(UNDETERMINED, ended=True, exit_code=1, failure=refused))
    assert (first.road, first.exit_code) == (Road.STOP, 1)


def test_a_disk_that_is_full_still_is_no_road() -> None:
    """Whoever restarts there fails there: the sentence says what to free, the exit code stays the program's."""
    plan = decide(situation(UNDETERMINED, ended=True, exit_code=1, fruitless=3, full_disk="/ckpt is full (0 B free)"))
    assert (plan.road, plan.exit_code, plan.evict) == (Road.STOP, 1, ())
    assert "/ckpt is full" in plan.reason


def test_the_same_words_on_the_same_node_count_beyond_a_new_step() -> None:
    """A broken GPU lets training go on for a while each time; elsewhere, only what came since the last step does."""
    error = Failure("died: cuda error: unspecified launch failure", ("n2",), FailureCause.WORDS)
    accused = situation(culprit("n2", infrastructure=False), ended=True, failure=error, older_failures=(error,))
    assert decide(accused).evict == ("n2",)
    elsewhere = replace(accused, older_failures=(replace(error, nodes=("n3",)),))
    assert decide(elsewhere).road is Road.RESTART_IN_PLACE


def test_an_error_that_goes_where_the_job_goes_is_no_nodes() -> None:
    """It came on n2, and on n3 after the job had moved; again on n3 it takes no second node from the job."""
    error = Failure("died: runtimeerror: odd batch", ("n3",), FailureCause.WORDS)
    moved = (replace(error, nodes=("n2",)), error)
    again = situation(culprit("n3", infrastructure=False), ended=True, failure=error, older_failures=moved)
    assert decide(again).evict == ()
    assert decide(replace(again, older_failures=(error,))).evict == ("n3",)


suspects = st.builds(Suspect, names, st.just((0,)), st.floats(0, 1), st.just("because"), st.booleans())
verdicts = st.builds(
    Verdict,
    st.sampled_from(Conclusion),
    st.sampled_from(["", "a reason"]),
    st.lists(suspects, max_size=6).map(tuple),
    corroborated=st.booleans(),
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
)


@given(situations)
def test_whatever_the_situation(s: Situation) -> None:
    """The rules that no situation may break."""
    plan = decide(s)
    assert plan.reason.strip()
    assert set(plan.evict) <= set(NODES)
    assert len(plan.evict) <= max_evictions(len(NODES))
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
    if s.verdict.conclusion is not Conclusion.CULPRIT:
        assert set(plan.evict) <= set(s.dead_nodes)
    if s.verdict.conclusion is Conclusion.USER_CODE:
        assert plan.road in (Road.STOP, Road.ALERT_ONLY)
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
    """What observe mode shows is what act mode would do."""
    assert decide(replace(s, mode=Mode.OBSERVE)) == decide(replace(s, mode=Mode.ACT))


@given(situations)
def test_nothing_is_done_without_cause(s: Situation) -> None:
    """No end, no dead node, no corroboration, limit not reached: nothing."""
    calm = replace(
        s, ended=False, dead_nodes=(), action_limit_reached=False, verdict=replace(s.verdict, corroborated=False)
    )
    assert decide(calm).road is Road.ALERT_ONLY


def test_a_bare_exit_code_of_somebody_elses_step_is_left_to_the_script() -> None:
    """Over before any new step, with nothing but an exit code: the script may have its own next line for it."""
    prepared = situation(
        culprit("n2", infrastructure=False),
        outside=True,
        ended=True,
        over=True,
        exit_code=3,
        fruitless=1,
        failure=Failure("died: exit 3", ("n2",), FailureCause.PROGRAM),
    )
    plan = decide(prepared)
    assert (plan.road, plan.exit_code, plan.evict) == (Road.STOP, 3, ())
    assert "left to the script" in plan.reason
    killed = Failure("died: SIGKILL", ("n2",))
    for more in ({"over": False}, {"fruitless": 0}, {"failure": killed}, {"failure": None}, {"dead_nodes": ("n2",)}):
        assert decide(replace(prepared, **more)).road in REQUEUES, more  # type: ignore[arg-type]
    assert decide(replace(prepared, outside=False)).road is Road.RESTART_IN_PLACE
