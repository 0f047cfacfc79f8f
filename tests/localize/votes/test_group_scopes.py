"""Which kind of group a stack waits in."""

from __future__ import annotations

import pytest
from localize_scenes import ALL_REDUCE, BACKWARD, SYNC_BUFFERS, USER, frames
from parallel_scenes import (
    GRADIENT_SYNC,
    RECV_BACKWARD,
    RECV_FORWARD,
    SEND_BACKWARD,
    SEND_FORWARD,
    TENSOR_GATHER,
)

from slurm_robust.localize.evidence import StackFrame
from slurm_robust.localize.votes.group_scopes import Scope, scope_of


@pytest.mark.parametrize(
    ("stack", "scope"),
    [
        (GRADIENT_SYNC, Scope("dp")),
        (SYNC_BUFFERS, Scope("dp")),
        (TENSOR_GATHER, Scope("tp")),
        (RECV_FORWARD, Scope("pp", (-1,))),
        (SEND_BACKWARD, Scope("pp", (-1,))),
        (RECV_BACKWARD, Scope("pp", (1,))),
        (SEND_FORWARD, Scope("pp", (1,))),
        (frames("irecv torch/distributed/distributed_c10d.py:2400"), Scope("pp", (-1, 1))),
        (ALL_REDUCE, None),
        (BACKWARD, None),
        (USER, None),
        ((), None),
    ],
)
def test_scope_of_a_stack(stack: tuple[StackFrame, ...], scope: Scope | None) -> None:
    """Code that serves one kind of group tells it; all other code tells nothing."""
    assert scope_of(stack) == scope


def test_the_model_below_ddp_is_no_data_group() -> None:
    """DDP's forward stands below every model's collectives."""
    ddp = frames("DistributedDataParallel.forward torch/nn/parallel/distributed.py:1886")
    assert scope_of((*ddp, *ALL_REDUCE)) is None


def test_experts_exchange_from_tensor_mappings() -> None:
    """Megatron keeps the experts' all-to-all beside the tensor collectives."""
    file = "/opt/env/lib/python3.11/site-packages/megatron/core/tensor_parallel/mappings.py"
    assert scope_of((StackFrame("_AllToAll.forward", file, 400), StackFrame("all_to_all", file, 500))) == Scope("ep")
