"""Copies that run while the next step computes, and end before an optimizer changes their sources.

Between two calls of an optimizer, parameters and the optimizer's state do not change. So these may be copied during the
next forward and backward pass. Everything else is copied at once: statistics that a forward pass changes, averages that
the program keeps itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.saving.rank import copying, gpu_copies
from slurm_robust.checkpoint.saving.rank.bindings import local_tensor
from slurm_robust.checkpoint.saving.rank.copying import Pairs

_RunningCopy = gpu_copies.GpuCopy | copying.ThreadedCopy
_REMEDY = "CopyOptions(until_update=False) copies everything in the step"


def may_wait(state: Mapping[str, Any], sources: Sequence[torch.Tensor | bytes]) -> list[bool]:
    """Tell for each of a state's tensors whether only an optimizer of that state changes it."""
    held: set[int] = set()
    for value in state.values():
        if isinstance(value, torch.optim.Optimizer):
            held.update(_storage(param) for group in value.param_groups for param in group["params"])
            kept = (one for of_param in value.state.values() for one in of_param.values())
            held.update(_storage(one) for one in kept if isinstance(one, torch.Tensor))
    return [
        isinstance(source, torch.Tensor) and not source.is_inference() and _storage(source) in held
        for source in sources
    ]


def _storage(tensor: torch.Tensor) -> int:
    return local_tensor(tensor).untyped_storage().data_ptr()


def start(into: Sequence[torch.Tensor], out: Sequence[torch.Tensor]) -> list[_RunningCopy]:
    """Start copies; what cannot be copied beside the training is copied before this returns.

    Raises:
        RuntimeError: a part of it cannot be copied.
    """
    by_device: dict[torch.device, Pairs] = {}
    for target, source in zip(into, out, strict=True):
        targets, sources = by_device.setdefault(source.device, ([], []))
        targets.append(target)
        sources.append(source)
    going: list[_RunningCopy] = []
    # GPUs first: they copy while this thread starts the rest.
    for device, pairs in sorted(by_device.items(), key=lambda one: one[0].type != "cuda"):
        if device.type == "cuda":
            going.append(gpu_copies.GpuCopy(device, *pairs))
        elif device.type == "cpu":
            going.append(copying.ThreadedCopy(*pairs, copying.threads_here()))
        else:
            copying.here(*pairs)
    return going


class DeferredCopies:
    """Running copies of tensors that must not change meanwhile."""

    def __init__(self, into: list[torch.Tensor], out: list[torch.Tensor]) -> None:
        self._sources = out
        self._versions = [source._version for source in out]
        self._going = start(into, out)

    def finish(self) -> None:
        """Wait for its end. CheckpointError if a tensor was changed meanwhile, RuntimeError if one was not copied."""
        for going in self._going:
            going.wait()
        changed = sum(source._version != was for source, was in zip(self._sources, self._versions, strict=True))
        if changed:
            raise CheckpointError(
                f"{changed} parameters or optimizer values were changed while they were copied, "
                "and not by the optimizer's step()",
                _REMEDY,
            )
