"""The save plan: all ranks agree on torch.distributed.checkpoint's plan, and use it until the state changes."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import xxhash
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlan as DcpSavePlan
from torch.distributed.tensor import DTensor

from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.saving.rank.bindings import local_tensor
from slurm_robust.checkpoint.saving.shared import file_pieces
from slurm_robust.checkpoint.saving.shared.file_layout import FileLayout, arrange, pickled_value, stored


class SavePlan(NamedTuple):
    """A rank's share of every save.

    Attributes:
        layout: The layout of the rank's file.
        file: That file's name.
        metadata: DCP's `.metadata`, the same on all ranks.
        digest: The digest of the metadata.
    """

    layout: FileLayout
    file: str
    metadata: bytes
    digest: str

    def contents(self, flat: Mapping[str, Any]) -> list[torch.Tensor | bytes] | None:
        """Tensors and pickled values in the layout's order; None if a value has outgrown its space."""
        found: list[torch.Tensor | bytes] = []
        for place in self.layout.places:
            value = flat[place.name.fqn]
            if place.dtype is None:
                pickled = pickled_value(value)
                if len(pickled) > place.data_bytes:
                    return None
                found.append(pickled)
            else:
                found.append(local_tensor(value))
        return found


class RankGroup:
    """The ranks that save together; a single process if torch.distributed is not initialized.

    Has a gloo group of its own, so that our collectives do not mix with the training's, and do not use its GPU.
    """

    def __init__(self) -> None:
        up = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if up else 0
        self.world_size = dist.get_world_size() if up else 1
        self.group = dist.new_group(backend="gloo") if self.world_size > 1 else None

    def gather(self, value: Any) -> list[Any]:
        """Return all ranks' values, on every rank."""
        if self.group is None:
            return [value]
        found: list[Any] = [None] * self.world_size
        dist.all_gather_object(found, value, group=self.group)
        return found

    def gather_on_first(self, value: Any) -> list[Any]:
        """Return all ranks' values on rank 0; an empty list on other ranks."""
        if self.group is None:
            return [value]
        found: list[Any] | None = [None] * self.world_size if self.rank == 0 else None
        dist.gather_object(value, found, dst=0, group=self.group)
        return found or []

    def scatter(self, values: list[Any]) -> Any:
        """Return this rank's element of rank 0's list."""
        if self.group is None:
            return values[0]
        mine: list[Any] = [None]
        dist.scatter_object_list(mine, values if self.rank == 0 else None, src=0, group=self.group)
        return mine[0]

    def broadcast(self, value: Any, by: int = 0) -> Any:
        """Return the value of rank `by`, on every rank."""
        if self.group is None:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=by, group=self.group)
        return box[0]

    def maximum(self, *values: int) -> list[int]:
        """Return for each value the maximum over all ranks."""
        if self.group is None:
            return list(values)
        largest = torch.tensor(values, dtype=torch.int64)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=self.group)
        return [int(value) for value in largest.tolist()]


class FlatState:
    """A collected state, flat: DCP's name → tensor or value."""

    def __init__(self, collected: Mapping[str, Any], *, first: bool) -> None:
        self.planner = DefaultSavePlanner()
        self.planner.set_up_planner(dict(collected), None, first)
        self.flat: dict[str, Any] = self.planner.state_dict

    def signature(self) -> int:
        """Return a hash that differs if a plan for one state does not fit another; ignores the sizes of values."""
        parts: list[tuple[Any, ...]] = []
        for name, value in self.flat.items():
            if isinstance(value, DTensor):
                parts.append((name, value.dtype, value.shape, value.placements, value.device_mesh.shape))
            elif isinstance(value, torch.Tensor):
                parts.append((name, value.dtype, value.shape))
            else:
                parts.append((name,))
        return hash(tuple(parts))


def agree(state: FlatState, ranks: RankGroup) -> SavePlan:
    """Make the plan; all ranks call it.

    Raises:
        CheckpointError: a value cannot be saved, or the ranks' states are inconsistent.
    """
    failure, mine = "", None
    pickles: dict[str, bytes] = {}
    try:
        pickles = {n: pickled_value(v) for n, v in state.flat.items() if not isinstance(v, torch.Tensor)}
        for name, pickled in pickles.items():
            _check_readable(name, pickled)
        for name, value in state.flat.items():
            _check_supported(name, value)
        mine = state.planner.create_local_plan()
    except CheckpointError as error:
        failure = str(error)
    plans = ranks.gather_on_first((failure, mine))
    shares: list[tuple[str, DcpSavePlan | None]] = []
    metadata: Any = None
    if plans:
        failures = [why for why, _ in plans if why]
        if failures:
            shares = [(failures[0], None)] * len(plans)
        else:
            try:
                made, metadata = state.planner.create_global_plan([plan for _, plan in plans])
                shares = [("", plan) for plan in made]
            except ValueError as error:
                shares = [(f"the ranks' states are inconsistent: {error}", None)] * len(plans)
    failure, final = ranks.scatter(shares)
    if failure or final is None:
        raise CheckpointError(failure)
    layout = arrange(state.planner.finish_plan(final).items, pickles)
    file = f"__{ranks.rank}_0.distcp"
    placements = ranks.gather_on_first(stored(layout, file))
    written = b""
    if placements:
        metadata.storage_data = {index: where for share in placements for index, where in share.items()}
        written = pickle.dumps(metadata)
    written = ranks.broadcast(written)
    return SavePlan(layout, file if layout.file_bytes else "", written, xxhash.xxh3_128_hexdigest(written))


def _check_supported(name: str, value: object) -> None:
    if type(value).__name__ == "ShardedTensor":
        raise CheckpointError(
            f"{name} is a ShardedTensor, which FSDP1 used before DTensor: not supported",
            "Give FSDP a device_mesh, or use fully_shard (FSDP2)",
        )


def _check_readable(name: str, pickled: bytes) -> None:
    """Check now, and not at a restart, that a value can be read back."""
    frame = file_pieces.frame_object(len(pickled))
    try:
        torch.load(io.BytesIO(frame.before + pickled + frame.after), weights_only=True)
    except Exception as error:
        raise CheckpointError(
            f"{name}: torch.load(weights_only=True) cannot read it back: {str(error).splitlines()[0]}",
            "Save plain numbers, strings, lists, dicts and tensors, or call torch.serialization.add_safe_globals",
        ) from error
