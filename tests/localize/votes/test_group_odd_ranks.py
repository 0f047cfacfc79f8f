"""ByteRobust's rule alone: the paper's example, and where it would be wrong."""

from __future__ import annotations

from localize_scenes import WORKER_LOCK, in_loader, process
from parallel_scenes import BYTEROBUST, GRADIENT_SYNC, TENSOR_GATHER, evidence_of, job, without_layout

from slurm_robust.localize.evidence import Evidence
from slurm_robust.localize.judge import judge
from slurm_robust.localize.layout import known_groups
from slurm_robust.localize.votes.group import OddRanks, odd_ranks


def apart(evidence: Evidence) -> OddRanks:
    """What the rule finds."""
    found = odd_ranks(evidence.captures[-1], known_groups(evidence)[0])
    assert found is not None
    return found


def test_the_papers_example() -> None:
    """16 machines, TP=2 PP=4 DP=4: the odd ranks are on 12-15, which are one replica of the model."""
    found = apart(evidence_of(job(BYTEROBUST)))
    assert found.nodes == ("m12", "m13", "m14", "m15")
    assert found.group is not None
    assert found.group.description == "tensor and pipeline group of ranks 24-31"


def test_its_cost_is_known() -> None:
    """One odd pipeline stage at each end: the whole replica, two machines of it for nothing."""
    found = apart(evidence_of(job({12: TENSOR_GATHER, 15: TENSOR_GATHER})))
    assert found.nodes == ("m12", "m13", "m14", "m15")
    own = {f"m{rank // 2:02}" for rank in found.ranks}
    assert len(set(found.nodes) - own) == 2


def test_without_a_layout_it_names_one_node_at_most() -> None:
    """Nothing says what several nodes share."""
    assert apart(without_layout(evidence_of(job(BYTEROBUST)))).nodes == ()
    assert apart(without_layout(evidence_of(job({3: TENSOR_GATHER})))).nodes == ("m03",)


def test_odd_ranks_in_two_corners_share_nothing() -> None:
    """Two machines in no common group: nobody."""
    found = apart(evidence_of(job({0: TENSOR_GATHER, 15: TENSOR_GATHER, 6: TENSOR_GATHER})))
    assert found.group is None
    assert not found.nodes


def test_where_all_are_alike_none_is_odd() -> None:
    """One class of stacks."""
    seen = evidence_of(job({}))
    assert odd_ranks(seen.captures[-1], known_groups(seen)[0]) is None


def test_it_would_be_wrong_where_the_victims_are_of_two_kinds() -> None:
    """One data loader hangs on m15; its own replica waits at other places. The rule takes four, the judge the one."""
    ranks = job({12: TENSOR_GATHER, 13: TENSOR_GATHER, 14: TENSOR_GATHER}, GRADIENT_SYNC)
    ranks[30] = in_loader(30, process(WORKER_LOCK), node="m15")
    ranks[31] = in_loader(31, process(WORKER_LOCK), node="m15")
    seen = evidence_of(ranks)
    assert len(apart(seen).nodes) == 4
    assert [s.node for s in judge(seen).suspects] == ["m15"]
