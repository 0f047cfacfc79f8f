"""A training's state, and the ways to save it: ours, torch.save, torch.distributed.checkpoint (DCP), a bare copy."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from lib import wait_for
from torch import nn

from slurm_robust.checkpoint.saving.rank import copying

LAYERS = 24
OURS, COPY, COPY_ALONE = "Checkpointer", "plain copy", "plain copy, one thread"
UNTIL = "Checkpointer, until update"
KEPT = "async_save, kept buffers"
# What DCP offers; pinned memory and copies that do not block need CUDA.
_DCP = {
    "async_save": None,
    KEPT: {"shared": False, "staged": False, "process": False},
    "async_save, async staging": {"shared": False, "staged": True, "process": False},
    "async_save, process": {"shared": True, "staged": False, "process": True},
}
PINNED, PINNED_STAGED = "async_save, pinned", "async_save, pinned, async staging"
_DCP_ON_GPUS = {
    PINNED: {"shared": False, "staged": False, "process": False, "pinned": True},
    PINNED_STAGED: {"shared": False, "staged": True, "process": False, "pinned": True},
}
KEPT_THREADS = f"{KEPT}, more threads"
ASYNC = (*_DCP, KEPT_THREADS)
PROGRAMS = {
    (COPY, COPY_ALONE): 1.05,
    (OURS,): 2.1,
    ("torch.save",): 0.1,
    ("DCP save",): 0.2,
    ("async_save",): 1.2,
    (KEPT, KEPT_THREADS): 1.2,
    ("async_save, async staging",): 1.2,
    ("async_save, process",): 1.7,
}
"""The ways that share a process and its memory, and what that takes, in sizes of the state."""
WAYS = tuple(way for together in PROGRAMS for way in together)


class Saved(NamedTuple):
    """A save that has begun.

    Attributes:
        copied: Returns when the training may change its tensors.
        written: Returns when it is on the disk.
    """

    copied: Callable[[], object]
    written: Callable[[], object]


Save = Callable[[int], Saved]


def training(size_bytes: int) -> dict[str, Any]:
    """A model of `LAYERS` layers and its AdamW, with a state of about so many bytes together."""
    width = int((size_bytes / 12 / 12 / LAYERS) ** 0.5)
    with torch.device("meta"):
        layers = [
            nn.Sequential(nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.Linear(width, 4 * width))
            for _ in range(LAYERS)
        ]
        model = nn.Sequential(*layers)
    model.to_empty(device="cpu")
    for param in model.parameters():
        nn.init.normal_(param)
        param.grad = torch.ones_like(param)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    optimizer.step()
    for param in model.parameters():
        param.grad = None
    return {"model": model, "optimizer": optimizer}


def tensors(state: dict[str, Any]) -> list[torch.Tensor]:
    """All of them."""
    held = [value for kept in state["optimizer"].state.values() for value in kept.values()]
    return [*(param.detach() for param in state["model"].parameters()), *held]


def _plain(state: dict[str, Any]) -> dict[str, Any]:
    """What is given to torch.save and DCP: the cheapest way to ask for it."""
    return {"model": state["model"].state_dict(), "optimizer": state["optimizer"].state_dict()}


def _nothing() -> None:
    """Nothing is left to wait for."""


_DONE = Saved(_nothing, _nothing)


def prepared(together: tuple[str, ...], state: dict[str, Any], folder: Path) -> dict[str, Save]:
    """How those ways save; whatever they can make ready before the first save is ready then."""
    first = together[0]
    if first == COPY:
        return _copies(state)
    if first in (OURS, UNTIL):
        return {first: _ours(state, folder, until_update=first == UNTIL)}
    if first == "torch.save":

        def torchs(step: int) -> Saved:
            torch.save(_plain(state), folder / f"{step}.pt")
            return _DONE

        return {first: torchs}
    if first == "DCP save":

        def dcps(step: int) -> Saved:
            dcp.save(_plain(state), checkpoint_id=folder / str(step))
            return _DONE

        return {first: dcps}
    save = _asynchronous({**_DCP, **_DCP_ON_GPUS}[first], state, folder)

    def threaded(step: int) -> Saved:
        torch.set_num_threads(threads())
        saved = save(step)
        saved.copied()
        torch.set_num_threads(1)
        return saved

    return {first: save} | dict.fromkeys(together[1:], threaded)


def threads() -> int:
    """As many as copy for `Checkpointer` here."""
    return copying.threads_here()


def _copies(state: dict[str, Any]) -> dict[str, Save]:
    """Into memory that is there already: by one thread, and by as many as ours, which take turns as ours do."""
    source = tensors(state)
    target = [torch.empty_like(tensor).zero_() for tensor in source]

    def alone(_: int) -> Saved:
        torch._foreach_copy_(target, source)
        return _DONE

    def together(_: int) -> Saved:
        copying.copy(target, source, threads())
        return _DONE

    return {COPY: together, COPY_ALONE: alone}


def _ours(state: dict[str, Any], folder: Path, *, until_update: bool) -> Save:
    from slurm_robust.checkpoint import Checkpointer, CopyOptions  # noqa: PLC0415 (the others do without)

    saver = Checkpointer(folder, keep=1, copying=CopyOptions(until_update=until_update))
    saver.prepare(state)

    def written() -> None:
        saver.wait()
        wait_for(lambda: len(list(folder.iterdir())) == 1, 60, "older checkpoints are removed", poll_s=0.01)

    def ours(step: int) -> Saved:
        assert saver.save(step, state), saver.failures
        return Saved(_nothing, written)

    return ours


def _asynchronous(how: dict[str, bool] | None, state: dict[str, Any], folder: Path) -> Save:
    """DCP's own: as it comes (None), or with what makes it faster."""
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    options: dict[str, Any] = {}
    if how is not None:
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions  # noqa: PLC0415 (torch ≥ 2.9)
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType  # noqa: PLC0415 (the same)

        pinned = how.get("pinned", False)
        options["async_stager"] = DefaultStager(StagingOptions(pinned, how["shared"], how["staged"], pinned))
        kinds = AsyncCheckpointerType
        options["async_checkpointer_type"] = kinds.PROCESS if how["process"] else kinds.THREAD

    def save(step: int) -> Saved:
        done = dcp.async_save(_plain(state), checkpoint_id=folder / str(step), **options)
        if hasattr(done, "staging_completion"):
            return Saved(done.staging_completion.result, done.upload_completion.result)
        return Saved(_nothing, done.result)

    return save


def clear(together: tuple[str, ...], folder: Path) -> None:
    """Remove what was saved; ours removes what is old by itself."""
    for old in [path for path in folder.iterdir() if OURS not in together]:
        shutil.rmtree(old) if old.is_dir() else old.unlink()
