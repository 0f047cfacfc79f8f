"""Reads in which kind of parallel group a rank waits, for the vote on groups; tables, no guesses.

Python stacks name functions, not process groups. Megatron, DeepSpeed and PyTorch call their collectives from modules
that serve one kind of group only. A collective that is called from anywhere else has no scope: its waiters wait for
unknown ranks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from slurm_robust.localize.evidence import StackFrame
from slurm_robust.localize.stacks.frames import short_function


@dataclass(frozen=True)
class Scope:
    """The group that a rank waits in.

    Attributes:
        kind: `tp`, `dp`, `pp`, …
        toward: For point-to-point with pipeline neighbours: -1 for the stage before, 1 for the one after; empty for
            collectives, in which all members take part.
    """

    kind: str
    toward: tuple[int, ...] = ()


_PREV, _NEXT, _EITHER = (-1,), (1,), (-1, 1)
_TABLE: tuple[tuple[str, str, Scope], ...] = (
    ("moe/token_dispatcher.py", r".*all_to_all.*", Scope("ep")),
    ("tensor_parallel/mappings.py", r".*(?:all_to_all|AllToAll).*", Scope("ep")),
    ("tensor_parallel/mappings.py", r".*", Scope("tp")),
    ("tensor_parallel/layers.py", r".*", Scope("tp")),
    ("tensor_parallel/cross_entropy.py", r".*", Scope("tp")),
    ("tensor_parallel/data.py", r".*", Scope("tp")),
    ("p2p_communication.py", r"(?:send_forward_recv_backward|send_backward_recv_forward)", Scope("pp", _EITHER)),
    ("p2p_communication.py", r"(?:recv_forward|send_backward)", Scope("pp", _PREV)),
    ("p2p_communication.py", r"(?:recv_backward|send_forward)", Scope("pp", _NEXT)),
    ("p2p_communication.py", r"(?:send|recv)_\w+", Scope("pp", _EITHER)),
    ("runtime/pipe/engine.py", r"_exec_(?:recv_activations|send_grads)", Scope("pp", _PREV)),
    ("runtime/pipe/engine.py", r"_exec_(?:send_activations|recv_grads)", Scope("pp", _NEXT)),
    ("runtime/pipe/engine.py", r"_exec_reduce_grads", Scope("dp")),
    ("torch/distributed/pipelining/schedules.py", r".*", Scope("pp", _EITHER)),
    ("distributed/param_and_grad_buffer.py", r".*", Scope("dp")),
    ("optimizer/distrib_optimizer.py", r".*", Scope("dp")),
    ("optimizer/clip_grads.py", r".*", Scope("tp-pp")),
    ("torch/nn/parallel/distributed.py", r"_sync_.*|_distributed_broadcast.*", Scope("dp")),
    ("torch/distributed/distributed_c10d.py", r"(?:batch_isend_irecv|isend|irecv|send|recv)", Scope("pp", _EITHER)),
)
"""(end of the file's path, pattern of functions, scope). The innermost frame with a scope counts; the last line is
asked where no other frame has one. A send and a receive in one call may wait on either side: both are taken."""
_FALLBACK = len(_TABLE) - 1


@lru_cache(maxsize=32768)
def _line_of(file: str, function: str) -> int | None:
    path = "/" + file.replace("\\", "/")
    ends = ((at, functions) for at, (ending, functions, _) in enumerate(_TABLE) if path.endswith("/" + ending))
    return next((at for at, functions in ends if re.fullmatch(functions, function)), None)


def scope_of(frames: tuple[StackFrame, ...]) -> Scope | None:
    """The group that a thread with these frames (outermost first) waits in; None where its code does not show it."""
    fallback = None
    for frame in reversed(frames):
        line = _line_of(frame.file, short_function(frame.function))
        if line == _FALLBACK:
            fallback = _TABLE[line][2]
        elif line is not None:
            return _TABLE[line][2]
    return fallback
