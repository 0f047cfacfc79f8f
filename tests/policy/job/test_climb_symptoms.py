"""climb.symptom: what an incident looks like, and where evidence knows better."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ladder_situations import CRASH, HANG, NAN, crash, hang
from situations import FINISHED, UNDETERMINED, USER_CODE, culprit

from slurm_robust.core.model import Failure, FailureCause, Road
from slurm_robust.policy.job.climb import symptom
from slurm_robust.policy.job.decide import decide
from slurm_robust.policy.job.ladder import Symptom
from slurm_robust.policy.job.situation import JobFacts, Situation


@pytest.mark.parametrize(
    ("situation", "expected"),
    [
        (hang(), Symptom.HANG),
        (hang(verdict=culprit("n03", infrastructure=False), action_limit_reached=False), Symptom.HANG),
        (hang(verdict=replace(FINISHED, reason="it moves, and trains nothing")), Symptom.HANG),
        (crash(), Symptom.CRASH),
        (crash(failure=replace(HANG, signature="died: SIGSEGV")), Symptom.CRASH),
        (crash(failure=replace(CRASH, signature="CUDA unknown error", category="gpu_driver")), Symptom.CRASH),
        (crash(verdict=culprit("n03", infrastructure=False)), Symptom.CRASH),
        (crash(bad_loss=NAN), Symptom.BAD_LOSS),
        (crash(bad_loss=NAN, verdict=USER_CODE), Symptom.BAD_LOSS),
        (hang(bad_loss=NAN), Symptom.BAD_LOSS),
        (hang(action_limit_reached=False, slow="slow", failure=None), Symptom.SLOW),
        (hang(slow="slow"), Symptom.HANG),
    ],
)
def test_each_symptom(situation: Situation, expected: Symptom) -> None:
    """What ended, or what asks for an action, goes before slowness; a bad loss before all."""
    assert symptom(situation) is expected


@pytest.mark.parametrize(
    "situation",
    [
        crash(failure=replace(CRASH, cause=FailureCause.PROGRAM)),
        crash(failure=replace(CRASH, cause=FailureCause.SHARED)),
        crash(failure=replace(CRASH, cause=FailureCause.SLURM)),
        crash(failure=replace(CRASH, signature="runtime: MyError: boom", category="runtime")),
        crash(failure=replace(CRASH, signature="python: can't open file", category="launch_failed")),
        crash(
            failure=Failure("died: oom", ("n03",), FailureCause.EITHER), verdict=culprit("n03", infrastructure=False)
        ),
        crash(failure=None),
        crash(failure=None, verdict=FINISHED, bad_loss=NAN),
        crash(verdict=USER_CODE),
        crash(verdict=FINISHED),
        crash(full_disk="make room in /ckpt"),
        crash(dead_nodes=("n02",)),
        crash(faulty_nodes={"n02": "n02 has lost a GPU"}),
        crash(verdict=culprit("n03")),
        crash(verdict=culprit("n03", infrastructure=False), earlier_failures=(replace(CRASH, nodes=("n03",)),)),
        hang(verdict=culprit("n03")),
        hang(verdict=USER_CODE),
        hang(action_limit_reached=False),
    ],
)
def test_no_test_where_the_cause_is_known(situation: Situation) -> None:
    """The program, an outage, Slurm, a full disk, or a node that evidence names."""
    assert symptom(situation) is None
    assert decide(situation).road is not Road.TEST


@pytest.mark.parametrize(
    "more",
    [
        {"job": JobFacts(het_job=True)},
        {"job": JobFacts(addressable=False)},
        {"outside": True},
        {"ladder_options": Situation(UNDETERMINED, ("n01",), 1).ladder_options},
        {"failed_launches": 30, "failed_launches_limit": 30},
        {"fruitless": 6},
        {"earlier_failures": (replace(CRASH, nodes=("n07",)),), "failure": replace(CRASH, nodes=("n01",))},
    ],
)
def test_no_ladder_where_it_is_impossible_or_another_rule_stops(more: dict[str, object]) -> None:
    """Today's decisions, whatever they are."""
    plan = decide(crash(**more))
    assert plan.road is not Road.TEST
    assert not plan.rung
