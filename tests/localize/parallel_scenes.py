"""A job of 16 machines with two GPUs each (TP=2, PP=4, DP=4, pipelines on neighbouring machines), and its stacks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from localize_scenes import ALL_REDUCE, FEEDER, MAIN, capture, frames, process, rank

from slurm_robust.localize.evidence import Evidence, RankCapture, StackFrame

_CORE = "/home/u/megatron/core/"
_LOGGED = "_exception_logger.<locals>.wrapper torch/distributed/c10d_logger.py:83"
_TRAIN = frames(*MAIN, "train_step /home/u/megatron/training/training.py:700")
_SCHEDULE = StackFrame(
    "forward_backward_pipelining_without_interleaving", f"{_CORE}pipeline_parallel/schedules.py", 1900
)


def _pipeline(call: str, *below: StackFrame) -> tuple[StackFrame, ...]:
    p2p = f"{_CORE}pipeline_parallel/p2p_communication.py"
    return (*_TRAIN, _SCHEDULE, StackFrame(call, p2p, 400), StackFrame("_communicate", p2p, 300), *below)


GRADIENT_SYNC = (
    *_TRAIN,
    StackFrame("finalize_model_grads", f"{_CORE}distributed/finalize_model_grads.py", 260),
    StackFrame("finish_grad_sync", f"{_CORE}distributed/param_and_grad_buffer.py", 330),
    *frames(_LOGGED, "all_reduce torch/distributed/distributed_c10d.py:3252"),
)
RECV_BACKWARD = _pipeline("recv_backward", *frames("irecv torch/distributed/distributed_c10d.py:2400"))
RECV_FORWARD = _pipeline("recv_forward", *frames("irecv torch/distributed/distributed_c10d.py:2400"))
SEND_BACKWARD = _pipeline("send_backward", *frames("isend torch/distributed/distributed_c10d.py:2350"))
SEND_FORWARD = _pipeline("send_forward", *frames("isend torch/distributed/distributed_c10d.py:2350"))
TENSOR_GATHER = (
    *_TRAIN,
    _SCHEDULE,
    StackFrame("_gather_along_first_dim", f"{_CORE}tensor_parallel/mappings.py", 120),
    *frames(_LOGGED, "all_gather_into_tensor torch/distributed/distributed_c10d.py:3900"),
)
SIZES: Mapping[str, int] = {"tp": 2, "pp": 4, "dp": 4}
ORDER = "tp-pp-dp"


def on_machine(number: int, stack: tuple[StackFrame, ...]) -> tuple[RankCapture, RankCapture]:
    """Both ranks of a machine at one place."""
    ranks = (2 * number, 2 * number + 1)
    one, two = (rank(r, process(stack, side=[FEEDER]), node=f"m{number:02}") for r in ranks)
    return one, two


def job(
    stacks: Mapping[int, tuple[StackFrame, ...]], otherwise: tuple[StackFrame, ...] = GRADIENT_SYNC
) -> list[RankCapture]:
    """All 16 machines; those that are named stand where it is said."""
    return [r for number in range(16) for r in on_machine(number, stacks.get(number, otherwise))]


def evidence_of(ranks: list[RankCapture], *, rounds: int = 2, sizes: Mapping[str, int] = SIZES) -> Evidence:
    """Captured so many times, unmoved, with the layout."""
    nodes = {r.rank: r.node for r in ranks}
    captures = tuple(capture(1000.0 + 5 * n, *ranks) for n in range(rounds))
    return Evidence(len(ranks), nodes, captures, layout=sizes, layout_order=ORDER)


def without_layout(evidence: Evidence) -> Evidence:
    """The same, and nobody said how the ranks are grouped."""
    return replace(evidence, layout={})


BYTEROBUST = {12: RECV_BACKWARD, 13: RECV_BACKWARD, 14: SEND_FORWARD, 15: TENSOR_GATHER}
"""The paper's example: machines 0-11 in gradient synchronisation, 12 and 13 in irecv, 14 in isend, 15 in all-gather."""
SOMEWHERE = ALL_REDUCE
"""A collective called from code that serves no one kind of group."""
