"""Collects the state of a training loop's objects by name, and restores it.

Models and optimizers become tensors by their fully qualified names, as torch.distributed.checkpoint expects them, so
that they can be loaded into another parallel layout. State without tensors is saved as bytes.
"""

from __future__ import annotations

import io
import random
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from slurm_robust.checkpoint.errors import CheckpointError

RNG = "rng"


class PerRank:
    """Wraps an object whose state differs on each rank, a data loader, say: `{"loader": PerRank(loader)}`.

    Args:
        of: Has `state_dict` and `load_state_dict`.
    """

    def __init__(self, of: Any) -> None:
        self.of = of


def rank_key(name: str, rank: int) -> str:
    """Return the name of one rank's share of `name`."""
    return f"{name}.rank{rank}"


def collect(state: Mapping[str, Any], rank: int, *, rng: bool) -> dict[str, Any]:
    """Return the state of all objects, for torch.distributed.checkpoint; tensors are those in use, not copies.

    Raises:
        CheckpointError: an optimizer's model is not in `state`.
    """
    found: dict[str, Any] = {}
    for name, value in state.items():
        if isinstance(value, nn.Module):
            found[name] = get_model_state_dict(value)
        elif isinstance(value, torch.optim.Optimizer):
            found[name] = get_optimizer_state_dict(_model_of(value, name, state), value)
        elif isinstance(value, PerRank):
            found[rank_key(name, rank)] = packed(value.of.state_dict())
        else:
            content = value.state_dict() if hasattr(value, "state_dict") else value
            found[name] = content if _has_tensors(content) else packed(content)
    if rng:
        found[rank_key(RNG, rank)] = packed(_rng_state())
    return found


def collect_untouched(state: Mapping[str, Any], rank: int, *, rng: bool) -> dict[str, Any]:
    """Do as `collect`, without side effects on an optimizer that has not taken a step yet.

    To create its tensors, torch makes such an optimizer take a step without gradients. That changes no weight, but it
    would count: Adam's first step would be corrected as its second.
    """
    new = [value for value in state.values() if isinstance(value, torch.optim.Optimizer) and not value.state]
    found = collect(state, rank, rng=rng)
    for optimizer in new:
        optimizer.state.clear()
    return found


def restore(state: MutableMapping[str, Any], loaded: Mapping[str, Any], rank: int, *, rng: bool) -> list[str]:
    """Restore all objects from `loaded`; plain values of `state` are replaced.

    Returns:
        Names without a state for this rank: a different number of ranks wrote it.
    """
    missing: list[str] = []
    for name, value in list(state.items()):
        if isinstance(value, nn.Module):
            set_model_state_dict(value, loaded[name])
        elif isinstance(value, torch.optim.Optimizer):
            set_optimizer_state_dict(_model_of(value, name, state), value, loaded[name])
        elif isinstance(value, PerRank):
            if rank_key(name, rank) in loaded:
                value.of.load_state_dict(unpacked(loaded[rank_key(name, rank)]))
            else:
                missing.append(name)
        else:
            content = loaded[name]
            content = unpacked(content) if isinstance(content, bytes) else content
            if hasattr(value, "load_state_dict"):
                value.load_state_dict(content)
            elif not isinstance(value, torch.Tensor):  # a tensor was loaded in place
                state[name] = content
    if rng:
        if rank_key(RNG, rank) in loaded:
            _set_rng_state(unpacked(loaded[rank_key(RNG, rank)]))
        else:
            missing.append(RNG)
    return missing


def packed(content: Any) -> bytes:
    """Return a state without large tensors, as bytes."""
    out = io.BytesIO()
    torch.save(content, out)
    return out.getvalue()


def unpacked(content: bytes) -> Any:
    """Return the state in such bytes. Raises CheckpointError if loading them would run code from the file."""
    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:
        raise CheckpointError(
            f"a state contains a value that torch.load(weights_only=True) does not load: {str(error).splitlines()[0]}",
            "Save plain numbers, strings, lists, dicts and tensors, or call torch.serialization.add_safe_globals",
        ) from error


def _model_of(optimizer: torch.optim.Optimizer, name: str, state: Mapping[str, Any]) -> nn.Module:
    mine = {id(param) for group in optimizer.param_groups for param in group["params"]}
    for value in state.values():
        if isinstance(value, nn.Module) and mine <= {id(param) for param in value.parameters()}:
            return value
    raise CheckpointError(
        f"the parameters of optimizer {name!r} are in no model of the state",
        "Add its model to the state: its parameter names are needed",
    )


def _has_tensors(content: Any) -> bool:
    if isinstance(content, torch.Tensor):
        return True
    if isinstance(content, Mapping):
        return any(_has_tensors(value) for value in content.values())
    return isinstance(content, (list, tuple)) and any(_has_tensors(value) for value in content)


def _rng_state() -> dict[str, Any]:
    version, words, gauss = random.getstate()
    # As a tensor: torch.save pickles every number of a tuple separately.
    found: dict[str, Any] = {"python": [version, torch.tensor(words), gauss], "torch": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        found["cuda"] = torch.cuda.get_rng_state()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        kind, keys, *rest = numpy.random.get_state()
        found["numpy"] = [kind, torch.from_numpy(keys.astype("int64")), *rest]
    return found


def _set_rng_state(found: dict[str, Any]) -> None:
    version, words, gauss = found["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    torch.set_rng_state(found["torch"])
    if "cuda" in found and torch.cuda.is_available():
        torch.cuda.set_rng_state(found["cuda"])
    if "numpy" in found and (numpy := sys.modules.get("numpy")) is not None:
        kind, keys, *rest = found["numpy"]
        numpy.random.set_state((kind, keys.numpy().astype("uint32"), *rest))
