"""ByteRobust's rule alone: the paper's example, and where it would be wrong."""

from __future__ import annotations

from localize_scenes import WORKER_LOCK, in_loader, process
from parallel_scenes import BYTEROBUST, GRADIENT_SYNC, TENSOR_GATHER, evidence_of, job, without_layout

from slurm_robust.localize.judge import judge
from slurm_robust.localize.votes.dominant import judge_dominant
from slurm_robust.model import Conclusion, Verdict


def said(verdict: Verdict | None) -> Verdict:
    """The rule has something to say."""
    assert verdict is not None
    return verdict


def nodes(verdict: Verdict) -> list[str]:
    """Nodes of the suspects."""
    return [s.node for s in verdict.suspects]


def test_the_papers_example() -> None:
    """16 machines, TP=2 PP=4 DP=4: the outliers are on 12-15, which are one replica of the model."""
    found = said(judge_dominant(evidence_of(job(BYTEROBUST))))
    assert nodes(found) == ["m12", "m13", "m14", "m15"]
    assert "tensor and pipeline group of ranks 24-31" in found.reason


def test_what_it_costs_is_told() -> None:
    """One odd pipeline stage at each end: the whole replica, two machines of it for nothing."""
    found = said(judge_dominant(evidence_of(job({12: TENSOR_GATHER, 15: TENSOR_GATHER}))))
    assert nodes(found) == ["m12", "m13", "m14", "m15"]
    assert found.detail == "leaving m12, m13, m14, m15 costs 2 nodes without an outlier"


def test_without_a_layout_it_names_one_node_at_most() -> None:
    """Nothing says what several nodes share."""
    assert said(judge_dominant(without_layout(evidence_of(job(BYTEROBUST))))).conclusion is Conclusion.UNDETERMINED
    assert nodes(said(judge_dominant(without_layout(evidence_of(job({3: TENSOR_GATHER})))))) == ["m03"]


def test_outliers_in_two_corners_share_nothing() -> None:
    """Two machines in no common group: nobody."""
    found = said(judge_dominant(evidence_of(job({0: TENSOR_GATHER, 15: TENSOR_GATHER, 6: TENSOR_GATHER}))))
    assert found.conclusion is Conclusion.UNDETERMINED
    assert not found.suspects


def test_all_alike_is_no_outlier() -> None:
    """One class: nothing to say."""
    assert judge_dominant(evidence_of(job({}))) is None


def test_it_would_be_wrong_where_the_victims_are_of_two_kinds() -> None:
    """One data loader hangs on m15; its own replica waits at other places. The rule takes four, the judge the one."""
    ranks = job({12: TENSOR_GATHER, 13: TENSOR_GATHER, 14: TENSOR_GATHER}, GRADIENT_SYNC)
    ranks[30] = in_loader(30, process(WORKER_LOCK), node="m15")
    ranks[31] = in_loader(31, process(WORKER_LOCK), node="m15")
    seen = evidence_of(ranks)
    assert len(nodes(said(judge_dominant(seen)))) == 4
    assert nodes(judge(seen)) == ["m15"]
