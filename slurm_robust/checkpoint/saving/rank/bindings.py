"""Remembers which object holds each tensor of a plan, so that a save need not ask torch for names again.

Collecting a state of 2,000 tensors with torch's own functions takes 60 ms, copying half a GB of them takes 30. So the
first save finds the holder of each tensor (a module, an optimizer's state, a dict), and later saves read from there.
If anything differs (a tensor of another shape, one more parameter, a module that FSDP has gathered), the state is
collected again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from slurm_robust.checkpoint.saving.rank.training_state import PerRank, collect

_Key = tuple[int, torch.dtype, torch.Size]


class _Holder(NamedTuple):
    """Returns the dict that contains a tensor, and its key there."""

    within: Callable[[], Mapping[Any, Any]]
    key: Any


class Bindings:
    """The holders of all tensors of a state, and of its other values.

    `state` is the argument of `save`, `flat` the same, collected and flattened; with `rng`, random generators belong to
    it.
    """

    def __init__(self, state: Mapping[str, Any], flat: Mapping[str, Any], rank: int, *, rng: bool) -> None:
        self._rank, self._rng = rank, rng
        self._parts = {name: id(value) for name, value in state.items()}
        self._census = _census(state)
        self._tensors: dict[str, tuple[list[_Holder], torch.Tensor]] = {}
        self._values: dict[str, tuple[Mapping[str, Any], str]] = {}
        self.complete = self._bind(state, flat)

    def _bind(self, state: Mapping[str, Any], flat: Mapping[str, Any]) -> bool:
        """Find all holders; False if a tensor or value has no known one."""
        holders: dict[_Key, list[_Holder]] = {}
        for holder in _holders(state):
            holders.setdefault(_identity(holder.within()[holder.key]), []).append(holder)
        small = set(collect(_small(state), self._rank, rng=self._rng))
        groups = {
            f"{name}.param_groups.{number}.{key}": (group, key)
            for name, value in state.items()
            if isinstance(value, torch.optim.Optimizer)
            for number, group in enumerate(value.param_groups)
            for key in group
        }
        for name, value in flat.items():
            if isinstance(value, torch.Tensor):
                found = holders.get(_identity(value), [])
                if not found and local_tensor(value).numel():
                    return False
                self._tensors[name] = (found, found[0].within()[found[0].key] if found else value)
            elif name in small:
                continue
            elif name in groups:
                # The names of its parameters are unchanged as long as the census is.
                self._values[name] = groups[name] if groups[name][1] != "params" else ({"params": value}, "params")
            else:
                return False
        return True

    def flat(self, state: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the current flat state; None if it has to be collected again."""
        if not self.complete or {name: id(value) for name, value in state.items()} != self._parts:
            return None
        if _census(state) != self._census:
            return None
        found: dict[str, Any] = {}
        for name, (holders, was) in self._tensors.items():
            now = holders[0].within().get(holders[0].key) if holders else was
            # Tied weights have several holders, which must still hold the same tensor.
            if any(other.within().get(other.key) is not now for other in holders[1:]):
                return None
            if now is not was:
                if type(now) is not type(was) or now.shape != was.shape or now.dtype != was.dtype:
                    return None
                if isinstance(now, DTensor) and now.placements != getattr(was, "placements", None):
                    return None
            found[name] = now
        found.update((name, group[key]) for name, (group, key) in self._values.items())
        found.update(collect(_small(state), self._rank, rng=self._rng))
        return found


def _small(state: Mapping[str, Any]) -> dict[str, Any]:
    """Parts that are collected each time: states without tensors, plain values."""
    return {
        name: value
        for name, value in state.items()
        if isinstance(value, PerRank)
        or not isinstance(value, (nn.Module, torch.optim.Optimizer, torch.Tensor, Mapping))
    }


def _holders(state: Mapping[str, Any]) -> Iterator[_Holder]:
    for value in state.values():
        if isinstance(value, nn.Module):
            for module in value.modules():
                for table in (module._parameters, module._buffers):
                    yield from (_Holder(_just(table), key) for key, held in table.items() if held is not None)
        elif isinstance(value, torch.optim.Optimizer):
            # load_state_dict replaces `state` and its contents, so it is looked up from the optimizer each time.
            for param, kept in value.state.items():
                yield from (_Holder(_of(value, param), key) for key, held in kept.items() if _is_tensor(held))
        elif isinstance(value, MutableMapping):
            yield from (_Holder(_just(value), key) for key, held in value.items() if _is_tensor(held))


def _just(table: Mapping[Any, Any]) -> Callable[[], Mapping[Any, Any]]:
    return lambda: table


def _of(optimizer: torch.optim.Optimizer, param: torch.Tensor) -> Callable[[], Mapping[Any, Any]]:
    return lambda: optimizer.state.get(param, {})


def _is_tensor(held: object) -> bool:
    return isinstance(held, torch.Tensor)


def local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's share of a tensor; the tensor itself if it is not sharded."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def _identity(tensor: torch.Tensor) -> _Key:
    """Return a key that is equal for two tensors with the same bytes in the same shape."""
    local = local_tensor(tensor)
    return local.data_ptr(), tensor.dtype, tensor.shape


def _census(state: Mapping[str, Any]) -> tuple[int, ...]:
    """Numbers that change when a parameter, a buffer, a module or an optimizer's state comes or goes."""
    found: list[int] = []
    for value in state.values():
        if isinstance(value, nn.Module):
            for module in value.modules():
                found += (len(module._parameters), len(module._buffers), len(module._modules))
        elif isinstance(value, torch.optim.Optimizer):
            found += [len(kept) for kept in value.state.values()]
            found += [len(group["params"]) for group in value.param_groups]
            found += [len(group) for group in value.param_groups]
        elif isinstance(value, Mapping):
            found.append(len(value))
    return tuple(found)
