"""The ladder in a training's memory: kept over requeues, and told of new steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from slurm_robust.core.model import Failure, FailureCause, Plan, Road, TestName
from slurm_robust.marks.claim import STATE_WANTS_REQUEUE, STATE_WATCHING, Claim
from slurm_robust.policy.job.ladder import LadderMemory, Rung, Symptom, TestOutcome
from slurm_robust.supervise.incident_folder import IncidentFolder
from slurm_robust.supervise.lineage import lineage_store
from slurm_robust.supervise.lineage.lineage import Lineage, LineageMemory, Tally

HANG = Failure("hang at x", ("n1",), FailureCause.EITHER)
TESTS = (TestName.IN_NODE, TestName.PAIRS)
TEST = Plan(Road.TEST, "", tests=TESTS, test_nodes=("n1", "n2"), rung="test")
AGAIN = Plan(Road.RESTART_IN_PLACE, "", rung="reattempt")


def climbed(lineage: Lineage, step: int, at_s: float) -> Lineage:
    """The lineage once an attempt that came to this step was ended for tests, and is made again."""
    memory = lineage.until(step).ladder
    outcome = TestOutcome(TESTS, ("n1", "n2"), took_s=20.0)
    memory = memory.climbed_by(TEST, Symptom.HANG, None, at_s).climbed_by(TEST, Symptom.HANG, outcome, at_s + 20.0)
    memory = memory.climbed_by(AGAIN, Symptom.HANG, None, at_s + 20.0, found="the same again")
    return replace(lineage, ladder=memory).after(step, -1, HANG, in_place=True)


def test_the_steps_of_the_attempt_that_climbed_are_not_new_after_it() -> None:
    """Only those of a later attempt settle the training, and only those that are new."""
    known = climbed(Lineage("a", reached=90), 100, 0.0)
    assert [c.rung for c in known.ladder.climbed] == [Rung.TEST, Rung.REATTEMPT]
    assert known.ladder.at(1e6, 3600.0).climbed
    assert known.until(100).ladder.at(1e6, 3600.0).climbed, "step 100 was made before"
    assert not known.until(101).ladder.at(1e6, 3600.0).climbed
    assert known.until(101).ladder.at(1000.0, 3600.0).climbed


def test_it_is_kept_over_a_requeue(tmp_path: Path) -> None:
    """With its rungs, tests and nodes, whatever the Comment says."""
    folder = IncidentFolder(tmp_path)
    known = climbed(Lineage("a"), 100, 1e9)
    known = replace(known, ladder=replace(known.ladder, left=("n7",)))
    lineage_store.save(folder, "k", known, Tally())
    said = Claim(STATE_WATCHING, "a", restart=1, step=100, fruitless=1)
    again = lineage_store.load(folder).of("k", said, Claim(STATE_WANTS_REQUEUE, "a", restart=0))
    assert again.ladder == known.ladder
    assert again.ladder.climbed[0].found == "in-node and pairs on 2 nodes in 20 s: passed"


def test_a_memory_from_before_there_was_a_ladder_is_read(tmp_path: Path) -> None:
    """A supervisor may be newer than the file."""
    (tmp_path / "lineage.json").write_text('{"speaks": "k", "runs": {"k": {"id": "a", "reached": 5}}}')
    memory = lineage_store.load(IncidentFolder(tmp_path))
    assert memory == LineageMemory("k", {"k": Lineage("a", 5)})
    assert memory.runs["k"].ladder == LadderMemory()
