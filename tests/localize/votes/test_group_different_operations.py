"""Members of one group in different operations can never meet: the program's fault, and no node's."""

from __future__ import annotations

from dataclasses import replace

import pytest
from localize_scenes import FEEDER, frames, process, rank
from parallel_scenes import (
    GRADIENT_SYNC,
    RECV_BACKWARD,
    RECV_FORWARD,
    SEND_BACKWARD,
    SEND_FORWARD,
    TENSOR_GATHER,
    evidence_of,
    job,
)

from slurm_robust.core.model import Conclusion
from slurm_robust.localize.evidence import Evidence, RankCapture, StackFrame
from slurm_robust.localize.judge import judge
from slurm_robust.localize.votes.group import judge_groups
from slurm_robust.policy.job.decide import decide
from slurm_robust.policy.job.situation import Situation

_CORE = "/home/u/megatron/core/"


def calls(stack: tuple[StackFrame, ...], function: str) -> tuple[StackFrame, ...]:
    """The same place with another collective of torch innermost."""
    return (*stack[:-1], *frames(f"{function} torch/distributed/distributed_c10d.py:4000"))


TENSOR_SCATTER = calls(TENSOR_GATHER, "reduce_scatter_tensor")
TENSOR_REDUCE = calls(TENSOR_GATHER, "all_reduce")
CLIP = (*GRADIENT_SYNC[:3], StackFrame("get_grad_norm_fp32", f"{_CORE}optimizer/clip_grads.py", 127),
        *frames("all_reduce torch/distributed/distributed_c10d.py:2810"))  # fmt: skip


def placed(stacks: dict[int, tuple[StackFrame, ...]], otherwise: tuple[StackFrame, ...] = GRADIENT_SYNC) -> Evidence:
    """The job of 16 machines; these ranks stand there."""
    ranks: list[RankCapture] = list(job({}, otherwise))
    for number, stack in stacks.items():
        ranks[number] = rank(number, process(stack, side=[FEEDER]), node=ranks[number].node)
    return evidence_of(ranks)


@pytest.mark.parametrize(
    ("evidence", "group"),
    [
        (placed({30: TENSOR_GATHER, 31: TENSOR_SCATTER}), "tensor group of ranks 30-31"),
        (placed({30: TENSOR_REDUCE, 31: TENSOR_GATHER}), "tensor group of ranks 30-31"),
        (placed({4: calls(GRADIENT_SYNC, "reduce_scatter_tensor")}), "data group of ranks 4,12,20,28"),
        (placed({4: calls(GRADIENT_SYNC, "all_gather_into_tensor")}), "data group of ranks 4,12,20,28"),
    ],
    ids=["gather and scatter", "reduce and gather", "one scatters gradients", "one gathers parameters"],
)
def test_different_operations_are_the_programs_fault(evidence: Evidence, group: str) -> None:
    """One member is in another operation than its peers: nobody is named, and no node is left at the action limit."""
    found = judge(evidence)
    assert found.conclusion is Conclusion.USER_CODE
    assert f"members of the {group} wait in different operations" in found.reason
    assert not found.suspects
    plan = decide(Situation(found, tuple(f"m{n:02}" for n in range(16)), 16, action_limit_reached=True))
    assert not plan.evict


def test_variants_of_one_collective_may_meet() -> None:
    """`all_gather` and `all_gather_into_tensor` are one operation: the group is whole, and its node is named."""
    found = judge(placed({30: TENSOR_GATHER, 31: calls(TENSOR_GATHER, "_all_gather_base")}))
    assert next(s.node for s in found.suspects) == "m15"


def test_who_leaves_a_broadcast_first_proves_nothing() -> None:
    """Its root goes on before the others have it: neither the program nor a node is named."""
    found = judge(placed({30: TENSOR_GATHER, 31: calls(TENSOR_GATHER, "broadcast")}))
    assert found.conclusion is Conclusion.UNDETERMINED
    assert not found.suspects


def test_a_circle_through_two_groups_is_no_machine() -> None:
    """30 skipped a tensor collective in which 31 waits for it, and waits for 31 where norms are summed."""
    evidence = placed(dict.fromkeys(range(32), CLIP) | {31: TENSOR_GATHER})
    assert judge_groups(evidence) is None
    assert judge(evidence).conclusion is Conclusion.UNDETERMINED


@pytest.mark.parametrize("pair", [(RECV_BACKWARD, RECV_FORWARD), (SEND_FORWARD, SEND_BACKWARD)], ids=["recv", "send"])
def test_neighbours_that_both_receive_never_meet(pair: tuple[tuple[StackFrame, ...], ...]) -> None:
    """Each stage waits for what the other never sends: an order of the program, or a lost message."""
    before, after = pair
    stacks = {24: before, 25: before, 26: after, 27: after}
    assert judge_groups(placed({**stacks, **dict.fromkeys(range(28, 32), RECV_FORWARD)})) is None


def test_a_wrong_layout_hides_the_group_and_names_nobody() -> None:
    """Sizes were swapped: the pair that cannot meet is part of a larger group, which is not whole."""
    found = judge(replace(placed({30: TENSOR_GATHER, 31: TENSOR_SCATTER}), layout={"tp": 4, "pp": 2, "dp": 4}))
    assert found.conclusion is Conclusion.UNDETERMINED
    assert not found.suspects


def test_it_must_last() -> None:
    """In the capture before, they stood in one operation: they move on."""
    now, before = placed({30: TENSOR_GATHER, 31: TENSOR_SCATTER}), placed({30: TENSOR_GATHER, 31: TENSOR_GATHER})
    found = judge(replace(now, captures=(before.captures[0], now.captures[1])))
    assert found.conclusion is not Conclusion.USER_CODE


def test_no_node_is_left_on_this_vote_alone() -> None:
    """A whole group in one operation may disagree on a shape: its nodes are named, and left only if it comes again."""
    found = judge(placed({30: TENSOR_GATHER, 31: TENSOR_GATHER}))
    assert found.conclusion is Conclusion.CULPRIT
    plan = decide(Situation(found, tuple(f"m{n:02}" for n in range(16)), 16, action_limit_reached=True))
    assert not plan.evict
