"""A copy that goes on beside the next step holds what the last one left, or it is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import _global_optimizer_pre_hooks as hooks
from worlds_server import in_worlds

from slurm_robust import checkpoint
from slurm_robust.checkpoint import Checkpointer, CopyOptions
from slurm_robust.checkpoint.saving.rank import copying, deferred_copies, gpu_copies


def trained() -> tuple[nn.Module, torch.optim.Optimizer, dict[str, Any]]:
    """A model with statistics and tied weights, its optimizer after a step, and a state of them and of more."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8))
    model[2].weight = model[0].weight  # type: ignore[union-attr,assignment]
    model[2].bias.requires_grad_(False)  # type: ignore[union-attr,union-attr]
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    step(model, optimizer)
    average = {name: param.detach().clone() for name, param in model.named_parameters()}
    return model, optimizer, {"model": model, "optimizer": optimizer, "average": average, "tokens": 7}


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Forward, backward, update."""
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()


def test_only_what_an_optimizer_changes_may_wait() -> None:
    """Parameters and their moments, tied ones too; no statistics, no average, no frozen parameter, no plain value."""
    model, optimizer, state = trained()
    named: dict[str, torch.Tensor | bytes] = {
        **{name: tensor.detach() for name, tensor in model.state_dict().items()},
        **{f"average.{name}": tensor for name, tensor in state["average"].items()},
        "moment": optimizer.state[model[0].weight]["exp_avg"],  # type: ignore[index,union-attr]
        "tokens": b"7",
    }
    waits = dict(zip(named, deferred_copies.may_wait(state, list(named.values())), strict=True))
    assert {name for name, wait in waits.items() if wait} == {
        "0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "moment",
    }  # fmt: skip
    assert not any(deferred_copies.may_wait({"model": model}, list(named.values())))


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that copy never get a core: what goes on is copied when it is waited for, and not before."""
    monkeypatch.setattr(copying._thread, "start_new_thread", lambda *_: None)  # type: ignore[attr-defined]


def test_an_optimizer_waits_for_the_copy(tmp_path: Path, idle: None) -> None:
    """Statistics change in the forward pass, parameters in the update: the checkpoint has both as they were."""
    model, optimizer, state = trained()
    with Checkpointer(tmp_path, copying=CopyOptions(until_update=True)) as saver:
        assert saver.save(1, state)
        was = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        moment = optimizer.state[model[0].bias]["exp_avg"].clone()  # type: ignore[index,union-attr]
        step(model, optimizer)
        assert saver.wait() == 1
        assert saver.failures == []
    assert not torch.equal(was["0.weight"], model.state_dict()["0.weight"])
    assert not torch.equal(was["1.running_mean"], model.state_dict()["1.running_mean"])
    with Checkpointer(tmp_path) as saver:
        assert saver.load_latest(state) == 1
    assert all(torch.equal(tensor, was[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(optimizer.state[model[0].bias]["exp_avg"], moment)  # type: ignore[index,union-attr]


def test_what_changes_a_parameter_without_an_optimizer_makes_the_copy_none(tmp_path: Path, idle: None) -> None:
    """It is said, with what to do about it; the checkpoint before it counts, and the next save works."""
    model, _, state = trained()
    with Checkpointer(tmp_path, copying=CopyOptions(until_update=True)) as saver:
        assert saver.save(1, state)
        assert saver.wait() == 1
        saver.save(2, state)
        with torch.no_grad():
            model[0].weight.add_(1)  # type: ignore[union-attr,operator]
        assert saver.wait() == 1
        assert ["step 2" in why and "until_update=False" in why for why in saver.failures] == [True]
        assert checkpoint.latest(tmp_path, deep=True).step == 1
        assert saver.save(3, state)
        assert saver.wait() == 3


def test_a_copy_of_which_the_first_part_failed_is_none(tmp_path: Path, idle: None) -> None:
    """What was to be copied at once was not: nothing that waits completes it, and nobody copies on into the slot."""
    model, optimizer, state = trained()
    with Checkpointer(tmp_path, copying=CopyOptions(until_update=True)) as saver:
        assert saver.save(1, state)
        assert saver.wait() == 1
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(copying, "copy", lambda *_: (_ for _ in ()).throw(RuntimeError("no memory")))
            assert not saver.save(2, state)
        assert ["step 2" in why and "no memory" in why for why in saver.failures] == [True]
        step(model, optimizer)
        assert saver.wait() == 1
        assert checkpoint.latest(tmp_path, deep=True).step == 1
        assert saver.save(3, state)
        assert saver.wait() == 3


def test_a_closed_one_leaves_optimizers_alone(tmp_path: Path) -> None:
    """Its hook is for all optimizers of the process: it goes with it."""
    before = len(hooks)
    with Checkpointer(tmp_path, copying=CopyOptions(until_update=True)):
        assert len(hooks) == before + 1
    assert len(hooks) == before


@pytest.mark.parametrize("layout", ["ddp", "fsdp", "tp"])
def test_every_layout_saves_what_it_was(tmp_path: Path, layout: str) -> None:
    """Shards of FSDP2 and of tensor parallelism, and DDP's replicas: what is loaded is what was saved, bit for bit."""
    saved, loaded = in_worlds(f"""
from slurm_robust.checkpoint.saving.rank import copying
copying._thread = type("Idle", (), {{"start_new_thread": lambda *_: None}})

def train(rank):
    training, digests = Training({layout!r}), []
    with Checkpointer({str(tmp_path)!r}, copying=CopyOptions(until_update=True)) as saver:
        for number in range(1, 5):
            training.step(number)
            if number < 4:
                assert saver.save(number, training.state)
                digests.append(training.digest())
        sealed = saver.wait()
        assert saver.failures == []
    return [sealed, digests[-1], training.digest()]

told(run(2, train))
told(run(2, load, {str(tmp_path)!r}, {layout!r}))
""")
    for (sealed, digest, later), rank in zip(saved, loaded, strict=True):
        assert sealed == rank["step"] == 3
        assert rank["digest"] == digest != later


def test_a_rank_killed_while_its_copy_goes_on_has_the_one_before(tmp_path: Path) -> None:
    """Half a copy is none: both ranks go on from the step before, whose values they get."""
    (loaded,) = in_worlds(f"""
import signal
from slurm_robust.checkpoint.saving.rank import copying
copying._thread = type("Idle", (), {{"start_new_thread": lambda *_: None}})

def train(rank):
    training = Training("fsdp")
    saver = Checkpointer({str(tmp_path)!r}, copying=CopyOptions(until_update=True))
    training.step(1)
    assert saver.save(1, training.state)
    digest = training.digest()
    assert saver.wait() == 1
    training.step(2)
    assert saver.save(2, training.state)
    with open({str(tmp_path / "digest")!r} + str(rank), "w") as file:
        file.write(digest)
    os.kill(os.getpid(), signal.SIGKILL)

run(2, train, expect=-9)
told(run(2, load, {str(tmp_path)!r}, "fsdp"))
""")
    for rank, told in enumerate(loaded):
        assert told["step"] == 1
        assert told["digest"] == (tmp_path / f"digest{rank}").read_text()


class Runtime:
    """What stands for CUDA's runtime, which no machine here has: it notes what is registered."""

    def __init__(self, code: int = 0) -> None:
        self.code, self.registered = code, dict[int, int]()

    def cudaHostRegister(self, address: int, size_bytes: int, flags: int) -> int:  # noqa: N802 (its name)
        """1 is cudaHostRegisterPortable."""
        assert flags == 1
        if not self.code:
            self.registered[address] = size_bytes
        return self.code

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802 (its name)
        """The reverse."""
        del self.registered[address]
        return 0

    def cudaGetErrorString(self, code: int) -> str:  # noqa: N802 (its name)
        """As the driver says it."""
        return {2: "out of memory"}[code]


def test_memory_is_registered_as_long_as_its_owner_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for all of it, and taken back before it is unmapped."""
    runtime = Runtime()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)

    class Owner:
        pass

    owner, memory = Owner(), bytearray(8192)
    assert gpu_copies.register(owner, memoryview(memory)) == ""
    assert list(runtime.registered.values()) == [8192]
    del owner
    assert runtime.registered == {}


def test_memory_that_cannot_be_registered_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit of the machine makes saves slower, and nothing else."""
    monkeypatch.setattr(torch.cuda, "cudart", lambda: Runtime(2))
    assert "out of memory" in gpu_copies.register(object, memoryview(bytearray(4096)))
