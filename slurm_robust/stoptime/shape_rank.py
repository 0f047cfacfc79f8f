"""Runs one rank of the alignment test in the job's own shape: tensor, pipeline and expert parallelism.

Each step is made by the ranks of two nodes together, over NCCL or gloo, as a training of that layout makes it. All
numbers are small and whole, so every sum is exact in any order: each rank computes the right result by itself, and
compares all bits. It needs only PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

SEED = 36
ROWS = 512
CPU_WIDTH, CUDA_WIDTH = 128, 512
"""A term of a sum is at most the square of the width, so a sum over 64 ranks is below 2**24 and exact in 32 bits."""
REPEATS = 3
KINDS = {"tp": "a tensor-parallel step", "pp": "a pipeline-parallel step", "ep": "an expert-parallel step"}
"""Kinds of parallelism that have a step, as layouts name them, in words."""


@dataclass(frozen=True)
class ShapeRank:
    """A rank in its group, with the objects that it computes with."""

    torch: Any
    dist: Any
    rank: int
    world: int
    device: str

    @property
    def width(self) -> int:
        """Return the width of all matrices on this device."""
        return CPU_WIDTH if self.device == "cpu" else CUDA_WIDTH

    def noise(self, seed: int, rows: int) -> Any:
        """Return numbers of -1, 0 and 1, with equal bits on every machine."""
        made = self.torch.Generator().manual_seed(SEED + seed)
        return self.torch.randint(-1, 2, (rows, self.width), generator=made)

    def there(self, numbers: Any) -> Any:
        """Return the numbers on the device, in the type in which it multiplies them."""
        return numbers.float().to(self.device)

    def product(self, left: Any, right: Any) -> Any:
        """Return the exact product, computed by the processor, so that on a GPU it is not by the tested library."""
        if self.device == "cpu":
            return left @ right
        return (left.double() @ right.double()).long()

    def wrong(self, found: Any, wanted: Any) -> int:
        """Return how many numbers are wrong."""
        return int((found.cpu() != wanted.float()).sum())


def run(own: ShapeRank, kinds: Iterable[str]) -> dict[str, int]:
    """Make the steps of these kinds with the others of the group; return how many numbers were wrong in each."""
    own.torch.backends.cuda.matmul.allow_tf32 = False
    if own.device == "cpu":
        own.torch.set_num_threads(1)
    steps = {"tp": _tensor, "pp": _pipeline, "ep": _expert}
    return {KINDS[kind]: sum(steps[kind](own, 1000 * turn) for turn in range(REPEATS)) for kind in kinds}


def _tensor(own: ShapeRank, seed: int) -> int:
    """Split the first matrix by columns and the second by rows, and sum the products; return how many are wrong."""
    inputs = own.noise(seed, ROWS)
    ups, downs = ([own.noise(seed + 2 * rank + way, own.width) for rank in range(own.world)] for way in (1, 2))
    found = own.there(inputs) @ own.there(ups[own.rank]) @ own.there(downs[own.rank])
    own.dist.all_reduce(found)
    parts = (own.product(own.product(inputs, up), down) for up, down in zip(ups, downs, strict=True))
    return own.wrong(found, sum(parts))


def _pipeline(own: ShapeRank, seed: int) -> int:
    """Pass activations through a stage on each rank, first to last, and something like gradients back."""
    inputs = own.noise(seed, ROWS)
    weights = [own.noise(seed + rank + 1, own.width) for rank in range(own.world)]
    last, mine = own.world - 1, own.there(weights[own.rank])
    forward = own.there(inputs) if own.rank == 0 else _received(own, own.rank - 1)
    forward = _small(forward @ mine)
    if own.rank < last:
        own.dist.send(forward, dst=own.rank + 1)
    back = forward if own.rank == last else _received(own, own.rank + 1)
    back = _small(back @ mine.T)
    if own.rank:
        own.dist.send(back, dst=own.rank - 1)
    wanted = _through(own, inputs, weights)
    wrong = own.wrong(forward, wanted[own.rank])
    return wrong + own.wrong(back, _through(own, wanted[last], [w.T for w in reversed(weights)])[last - own.rank])


def _received(own: ShapeRank, source: int) -> Any:
    found = own.torch.empty((ROWS, own.width), device=own.device)
    own.dist.recv(found, src=source)
    return found


def _small(numbers: Any) -> Any:
    """Return -1, 0 or 1 for each whole number, exactly."""
    return numbers % 3 - 1


def _through(own: ShapeRank, inputs: Any, weights: Sequence[Any]) -> list[Any]:
    """Return the right result of each stage."""
    found = [inputs]
    for weight in weights:
        found.append(_small(own.product(found[-1], weight)))
    return found[1:]


def _expert(own: ShapeRank, seed: int) -> int:
    """Send each expert its part of the own tokens, and get them back multiplied; return how many are wrong."""
    tokens = own.noise(seed + own.rank, ROWS * own.world)
    experts = [own.noise(seed + own.world + rank, own.width) for rank in range(own.world)]
    sent = own.there(tokens)
    came, back = own.torch.empty_like(sent), own.torch.empty_like(sent)
    own.dist.all_to_all_single(came, sent)
    own.dist.all_to_all_single(back, came @ own.there(experts[own.rank]))
    wanted = [own.product(part, expert) for part, expert in zip(tokens.split(ROWS), experts, strict=True)]
    return own.wrong(back, own.torch.cat(wanted))
