"""The short way to a state's tensors finds what torch's own functions find, or says that it does not know."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from slurm_robust.checkpoint.saving.rank.bindings import Bindings
from slurm_robust.checkpoint.saving.rank.save_plan import FlatState
from slurm_robust.checkpoint.saving.rank.training_state import PerRank, collect


class Tied(nn.Module):
    """Buffers, a module in a module, two names for one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        logits: torch.Tensor = self.head(self.body(self.embed(x)))
        return logits


@pytest.fixture
def state() -> dict[str, Any]:
    """After a step, so that the optimizer has a state."""
    model = Tied()
    optimizer = torch.optim.AdamW(
        [{"params": model.embed.parameters()}, {"params": model.body.parameters(), "lr": 0.5}]
    )
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    made = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "loader": PerRank(scheduler), "n": 1}
    made["ema"] = {"w": torch.ones(3)}
    train(made)
    return made


def train(state: dict[str, Any]) -> None:
    """One step of everything."""
    state["model"](torch.tensor([1, 2, 3])).sum().backward()
    state["optimizer"].step()
    state["scheduler"].step()


def the_long_way(state: dict[str, Any]) -> dict[str, Any]:
    """What torch finds."""
    return FlatState(collect(state, 0, rng=False), first=True).flat


def same(short: dict[str, Any] | None, long: dict[str, Any]) -> bool:
    """The same names; the same bytes at the same place, and equal values."""
    assert short is not None
    assert short.keys() == long.keys()
    return all(
        value.data_ptr() == short[name].data_ptr() and value.shape == short[name].shape
        if isinstance(value, torch.Tensor)
        else value == short[name]
        for name, value in long.items()
    )


def test_it_follows_the_training(state: dict[str, Any]) -> None:
    """Steps, a new learning rate, a loaded state with new tensors in it: always what torch would find."""
    bindings = Bindings(state, the_long_way(state), 0, rng=False)
    assert bindings.complete
    train(state)
    assert same(bindings.flat(state), the_long_way(state))
    state["optimizer"].param_groups[1]["lr"] = 0.25
    state["optimizer"].load_state_dict(state["optimizer"].state_dict())
    state["ema"]["w"] = torch.zeros(3)
    state["n"] = 1
    changed = bindings.flat(state)
    if changed is not None:
        assert same(changed, the_long_way(state))
    alone = {"model": state["model"]}
    fresh = Bindings(alone, the_long_way(alone), 0, rng=False)
    alone["model"].load_state_dict({k: v.clone() for k, v in alone["model"].state_dict().items()}, assign=True)
    assert fresh.flat(alone) is None or same(fresh.flat(alone), the_long_way(alone))


@pytest.mark.parametrize("change", ["parameter", "module", "shape", "optimizer", "part", "dict"])
def test_whatever_came_or_went_sends_it_the_long_way(state: dict[str, Any], change: str) -> None:
    """A save never leaves out what was added since the plan was made."""
    bindings = Bindings(state, the_long_way(state), 0, rng=False)
    if change == "parameter":
        state["model"].extra = nn.Parameter(torch.ones(2))
    elif change == "module":
        state["model"].body.append(nn.Linear(4, 4))
    elif change == "shape":
        state["model"].embed.weight = nn.Parameter(torch.ones(6, 4))
    elif change == "optimizer":
        state["optimizer"].add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    elif change == "part":
        state["more"] = 1
    else:
        state["ema"]["v"] = torch.ones(1)
    assert bindings.flat(state) is None


def test_a_state_dict_of_its_own_is_not_bound(state: dict[str, Any]) -> None:
    """A module that saves something else than what it holds is asked each time."""

    class Doubled(nn.Linear):
        def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
            destination[f"{prefix}weight"] = self.weight.detach() * 2
            destination[f"{prefix}bias"] = self.bias.detach()

    state["model"].body.append(Doubled(4, 4))
    bindings = Bindings({"model": state["model"]}, the_long_way({"model": state["model"]}), 0, rng=False)
    assert not bindings.complete
    assert bindings.flat({"model": state["model"]}) is None
