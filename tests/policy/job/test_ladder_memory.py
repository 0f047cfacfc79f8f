"""What a training remembers of its ladder."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from ladder_situations import IN_NODE, after_tests, hang

from slurm_robust.config.site import LadderConfig
from slurm_robust.core.model import Plan, Road, TestName
from slurm_robust.policy.job.climb import after_plan, history
from slurm_robust.policy.job.decide import decide
from slurm_robust.policy.job.ladder import DAY_S, LadderMemory, LadderOptions, Rung, Symptom, TestOutcome

TEST = Plan(Road.TEST, "", tests=(IN_NODE,), test_nodes=("n1", "n2"), rung="test")
AGAIN = Plan(Road.RESTART_IN_PLACE, "", rung="reattempt")


def test_a_test_is_remembered_from_its_beginning() -> None:
    """A supervisor that dies in it has used up the rung; with the outcome it is still one rung."""
    begun = LadderMemory().climbed_by(TEST, Symptom.CRASH, None, 100.0)
    assert [(c.rung, c.found) for c in begun.climbed] == [(Rung.TEST, "")]
    assert history(begun) == "in-node did not come to an end"
    done = begun.climbed_by(TEST, Symptom.CRASH, TestOutcome((IN_NODE,), ("n1", "n2"), took_s=7.6), 110.0)
    assert [(c.at_s, c.found) for c in done.climbed] == [(110.0, "in-node on 2 nodes in 8 s: passed")]
    assert done.tested_at_s == (100.0,)


def test_what_an_outcome_says() -> None:
    """What failed goes before what could not be told."""
    outcome = TestOutcome((IN_NODE,), ("n1", "n2"), {"n1": "n1 fails"}, open=("n2 was not tested",))
    assert outcome.sentence == "in-node on 2 nodes in 0 s: n1 fails"
    assert replace(outcome, failed={}).sentence == "in-node on 2 nodes in 0 s could not tell: n2 was not tested"


def test_tests_are_counted_within_a_day_over_all_climbs() -> None:
    """Settling forgets the climb, not the tests."""
    memory = LadderMemory(step=10).climbed_by(TEST, Symptom.CRASH, None, 0.0).made_step(11)
    settled = memory.at(3601.0, 3600.0)
    assert (settled.climbed, settled.tests_within_day(3601.0)) == ((), 1)
    assert settled.tests_within_day(DAY_S) == 0
    later = settled.climbed_by(TEST, Symptom.CRASH, None, DAY_S + 1.0)
    assert later.tested_at_s == (DAY_S + 1.0,)


def test_a_training_settles_by_new_steps_and_time() -> None:
    """Steps that were made before the rung, or are made again, are not new; after going back on purpose they are."""
    memory = LadderMemory().made_step(100).climbed_by(AGAIN, Symptom.HANG, None, 0.0)
    assert memory.made_step(100).at(9e9, 60.0) == memory
    assert not memory.made_step(101).at(61.0, 60.0).climbed
    assert memory.made_step(101).at(60.0, 60.0).climbed
    assert not memory.went_back(50).made_step(51).at(61.0, 60.0).climbed


def test_evicted_nodes_are_remembered_whatever_the_plan_is() -> None:
    """Each once."""
    memory = LadderMemory().climbed_by(Plan(Road.SEAT, "", ("n2", "n1")), None, None, 0.0)
    assert memory.climbed_by(Plan(Road.SEAT, "", ("n1", "n3")), None, None, 1.0).left == ("n2", "n1", "n3")
    assert memory.climbed == ()


def test_it_survives_the_file() -> None:
    """As the lineage is kept."""
    s = hang(apart_nodes=("n02",))
    s = after_tests(s, decide(s))
    memory = after_plan(s, replace(decide(s), evict=("n02",)))
    assert msgspec.json.decode(msgspec.json.encode(memory), type=LadderMemory) == memory
    assert len(memory.climbed) == 2
    assert memory.left == ("n02",)


def test_the_options_are_the_sites() -> None:
    """No test offered switches the ladder off."""
    options = LadderOptions.of(LadderConfig(), replay_possible=True)
    assert options.enabled
    assert options.tests == (TestName.IN_NODE, TestName.PAIRS, TestName.ALIGNMENT)
    assert options.replay_possible
    assert (options.tests_per_day, options.settled_s, options.over_evict) == (6, 3600.0, False)
    assert not LadderOptions.of(LadderConfig(tests=()), replay_possible=True).enabled
