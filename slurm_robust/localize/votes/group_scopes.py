"""Reads from tables in which kind of parallel group a rank waits, and in which operation.

Python stacks name functions, not process groups. Megatron, DeepSpeed and PyTorch call their collectives from modules
that serve one kind of group only. A collective that is called from anywhere else has no scope: its waiters wait for
unknown ranks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import lru_cache

from slurm_robust.localize.evidence import StackFrame
from slurm_robust.localize.stacks.frames import short_file, short_function


@dataclass(frozen=True)
class Scope:
    """The group that a rank waits in.

    Attributes:
        kind: `tp`, `dp`, `pp`, …
        toward: For point-to-point with pipeline neighbours: -1 for the stage before, 1 for the stage after; empty for
            collectives, in which all members take part.
        operation: The family of the collective (`all_gather`), `send` or `recv`; empty if the code does not show it.
    """

    kind: str
    toward: tuple[int, ...] = ()
    operation: str = field(default="", compare=False)


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
"""(end of the file's path, pattern of functions, scope). The innermost frame with a scope counts; the last line is only
used if no other frame has a scope. A send and a receive in one call may wait on either side: both are taken."""
_FALLBACK = len(_TABLE) - 1
ONE_SIDED = frozenset({"broadcast", "reduce", "gather", "scatter"})
"""Some members leave these before others have begun: a member in another operation does not prove a mismatch."""
_COLLECTIVE_FILES = ("torch/distributed/", "torch/nn/parallel/distributed.py", "deepspeed/comm/",
                     "megatron/core/tensor_parallel/mappings.py")  # fmt: skip
_FAMILIES = (
    ("all_gather", re.compile(r"_*all_?gather.*|_*gather_along_(?:first|last)_dim.*")),
    ("reduce_scatter", re.compile(r"_*reduce_?scatter.*")),
    ("all_reduce", re.compile(r"_*(?:inference_)?all_?reduce.*")),
    ("all_to_all", re.compile(r"_*all_?to_?all.*")),
    ("broadcast", re.compile(r"_*(?:distributed_)?broadcast.*")),
    ("barrier", re.compile(r"(?:monitored_)?barrier")),
    ("reduce", re.compile(r"reduce")),
    ("gather", re.compile(r"gather(?:_object)?")),
    ("scatter", re.compile(r"scatter(?:_object_list)?")),
)
"""(family, pattern of functions): the variants of one collective (`all_gather_into_tensor`) may meet each other."""
_SENDS, _RECEIVES = (
    re.compile(r"_?(?:exec_)?i?send(?:_(?!.*recv)\w+)?"),
    re.compile(r"_?(?:exec_)?i?recv(?:_(?!.*send)\w+)?"),
)


@lru_cache(maxsize=32768)
def _line_of(file: str, function: str) -> int | None:
    path = "/" + file.replace("\\", "/")
    ends = ((at, functions) for at, (ending, functions, _) in enumerate(_TABLE) if path.endswith("/" + ending))
    return next((at for at, functions in ends if re.fullmatch(functions, function)), None)


@lru_cache(maxsize=32768)
def _family_of(file: str, function: str) -> str:
    if not short_file(file).startswith(_COLLECTIVE_FILES):
        return ""
    return next((family for family, pattern in _FAMILIES if pattern.fullmatch(function)), "")


@lru_cache(maxsize=32768)
def _one_way(function: str) -> str:
    return "send" if _SENDS.fullmatch(function) else "recv" if _RECEIVES.fullmatch(function) else ""


def scope_of(frames: tuple[StackFrame, ...]) -> Scope | None:
    """Return the group in which a thread with these frames (outermost first) waits; None if its code shows none."""
    fallback: Scope | None = None
    operation = ""
    for frame in reversed(frames):
        function = short_function(frame.function)
        operation = operation or _family_of(frame.file, function)
        line = _line_of(frame.file, function)
        if line is None:
            continue
        scope = _TABLE[line][2]
        scope = replace(scope, operation=_one_way(function) if scope.toward else operation)
        if line != _FALLBACK:
            return scope
        fallback = scope
    return fallback
