"""All ranks wait: the group in which the waiting ends, and when nobody is named."""

from __future__ import annotations

from dataclasses import replace

import pytest
from localize_scenes import process, rank
from parallel_scenes import (
    BYTEROBUST,
    GRADIENT_SYNC,
    RECV_BACKWARD,
    RECV_FORWARD,
    SEND_FORWARD,
    SOMEWHERE,
    TENSOR_GATHER,
    evidence_of,
    job,
    without_layout,
)

from slurm_robust.core.model import Conclusion, Verdict
from slurm_robust.localize.evidence import Evidence, RankCapture, StackFrame
from slurm_robust.localize.judge import judge
from slurm_robust.localize.votes.group import CONFIDENCE_BESIDE, judge_groups


def said(evidence: Evidence) -> Verdict:
    """The vote has something to say."""
    found = judge_groups(evidence)
    assert found is not None
    return found


def test_the_papers_example_ends_at_machine_15() -> None:
    """All four nodes of the replica are named; the one where the waiting ends comes first. None is left at once."""
    found = judge(evidence_of(job(BYTEROBUST)))
    assert found.conclusion is Conclusion.CULPRIT
    assert [s.node for s in found.suspects] == ["m15", "m12", "m13", "m14"]
    assert not any(s.infrastructure for s in found.suspects)
    assert found.suspects[0].confidence > 4 * found.suspects[1].confidence
    assert "30 ranks wait" in found.reason
    assert "tensor group of ranks 30-31" in found.reason
    assert "tensor and pipeline group of ranks 24-31: excluding all of it costs 3 more nodes" in found.detail
    assert not found.corroborated
    assert any("flight recorder" in what for what in found.missing)


def test_a_link_between_two_stages() -> None:
    """One stage sends forward, the next receives from it: the pair, half the confidence each."""
    found = said(evidence_of(job({12: RECV_BACKWARD, 13: SEND_FORWARD, 14: RECV_FORWARD, 15: RECV_FORWARD})))
    named = [(s.node, s.confidence) for s in found.suspects if s.confidence > CONFIDENCE_BESIDE]
    # Each of the two GPUs of a machine has a pipeline of its own, so there are two pairs, and no one end.
    assert named == [("m13", 0.25), ("m14", 0.25)]


@pytest.mark.parametrize("stack", [GRADIENT_SYNC, TENSOR_GATHER, SOMEWHERE], ids=["data", "tensor", "unknown"])
def test_all_in_one_kind_of_collective(stack: tuple[StackFrame, ...]) -> None:
    """Every group is whole: the waiting ends everywhere, so stacks cannot tell."""
    evidence = evidence_of(job({}, stack))
    assert judge_groups(evidence) is None
    assert judge(evidence).conclusion is Conclusion.UNDETERMINED


def test_two_ends_name_nobody() -> None:
    """Two tensor groups in different replicas hold what others wait for: a cause that they share."""
    assert judge_groups(evidence_of(job({3: TENSOR_GATHER, 15: TENSOR_GATHER}))) is None


def test_who_waits_for_somebody_unknown_is_no_end() -> None:
    """One machine in a collective whose group its code does not tell: order of collectives, or anything."""
    evidence = evidence_of(job({15: SOMEWHERE}))
    assert judge_groups(evidence) is None
    assert judge(evidence).conclusion is Conclusion.UNDETERMINED


def test_one_capture_is_not_enough() -> None:
    """Nothing is known of motion yet."""
    assert judge_groups(evidence_of(job(BYTEROBUST), rounds=1)) is None


def test_an_end_that_moves_on_is_none() -> None:
    """Another group in the capture before: slow, or at work."""
    first = evidence_of(job({11: TENSOR_GATHER}))
    later = evidence_of(job({15: TENSOR_GATHER}))
    assert judge_groups(replace(later, captures=(first.captures[0], later.captures[1]))) is None


def test_a_rank_that_was_not_seen_may_be_the_end() -> None:
    """One of 32 ranks left out: nobody is named."""
    evidence = evidence_of(job(BYTEROBUST)[:-1])
    assert judge_groups(replace(evidence, world_size=32)) is None


def test_without_a_layout_nothing_is_said() -> None:
    """Python's stacks know no process groups."""
    assert judge_groups(without_layout(evidence_of(job(BYTEROBUST)))) is None


def test_a_layout_that_does_not_fit_is_said() -> None:
    """It is not used, and the verdict says why."""
    found = judge(evidence_of(job(BYTEROBUST), sizes={"tp": 2, "pp": 4, "dp": 2}))
    assert found.conclusion is Conclusion.UNDETERMINED
    assert "layout: tp=2,pp=4,dp=2 makes 16 ranks; beyond it: ranks 16-31" in found.missing


def test_more_than_half_of_the_nodes_share_a_cause() -> None:
    """Two machines of three wait in their own group: no node explains it."""
    ranks: list[RankCapture] = [
        rank(n, process(TENSOR_GATHER if n < 4 else GRADIENT_SYNC), node=f"m{n // 2}") for n in range(8)
    ]
    evidence = replace(evidence_of(ranks), layout={"tp": 4, "dp": 2}, layout_order="")
    assert judge_groups(replace(evidence, rank_nodes={})) is not None
    crowded = [replace(r, node="m0" if r.rank < 2 else "m1" if r.rank < 4 else "m2") for r in ranks]
    assert judge_groups(replace(evidence_of(crowded), layout={"tp": 4, "dp": 2}, layout_order="")) is None


def test_hosts_ahead_of_their_devices() -> None:
    """Under CUDA a host that waits uses a processor, and where it stands is not what its device waits in."""
    evidence = evidence_of(job(BYTEROBUST))
    first, last = evidence.captures

    def later(rank: RankCapture) -> RankCapture:
        return replace(rank, processes=tuple(replace(p, cpu_s=p.cpu_s + 5.0) for p in rank.processes))

    assert judge_groups(evidence) is not None
    ahead = replace(last, at_s=first.at_s + 5.0, ranks=tuple(later(r) for r in last.ranks))
    assert judge_groups(replace(evidence, captures=(first, ahead))) is None
