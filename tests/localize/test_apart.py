"""Whose nodes are tested first: those that a verdict suspects, else a small minority of stacks; and their group."""

from __future__ import annotations

from parallel_scenes import BYTEROBUST, TENSOR_GATHER, evidence_of, job, without_layout

from slurm_robust.core.model import Conclusion, Suspect, Verdict
from slurm_robust.localize.apart import Apart, standing_apart
from slurm_robust.localize.evidence import Evidence
from slurm_robust.localize.judge import judge

OPEN = Verdict(Conclusion.UNDETERMINED, "nothing names a node")


def test_suspects_stand_apart_whatever_they_are_suspected_of() -> None:
    """Also where nothing says that their machine is at fault; the group is that of the stacks."""
    evidence = evidence_of(job(BYTEROBUST))
    suspects = (Suspect("m03", (6,), 0.3, "its loader hangs", infrastructure=False),)
    verdict = Verdict(Conclusion.CULPRIT, "its loader hangs", suspects)
    assert standing_apart(evidence, verdict) == Apart(("m03",), ("m12", "m13", "m14", "m15"))
    found = judge(evidence)
    assert standing_apart(evidence, found).nodes == tuple(sorted({s.node for s in found.suspects}))


def test_without_suspects_it_is_the_smallest_class_of_stacks() -> None:
    """One machine of 16 stands elsewhere."""
    evidence = without_layout(evidence_of(job({5: TENSOR_GATHER})))
    assert standing_apart(evidence, OPEN) == Apart(("m05",), ())


def test_a_quarter_of_the_ranks_is_no_minority() -> None:
    """Four machines of 16 are not apart from the others, and three are."""
    quarter = without_layout(evidence_of(job(dict.fromkeys(range(4), TENSOR_GATHER))))
    fewer = without_layout(evidence_of(job(dict.fromkeys(range(3), TENSOR_GATHER))))
    assert standing_apart(quarter, OPEN).nodes == ()
    assert standing_apart(fewer, OPEN).nodes == ("m00", "m01", "m02")


def test_where_all_are_alike_or_nothing_was_seen_nobody_stands_apart() -> None:
    """One class of stacks, and no capture."""
    assert standing_apart(evidence_of(job({})), OPEN) == Apart()
    assert standing_apart(Evidence(4, {}), OPEN) == Apart()
