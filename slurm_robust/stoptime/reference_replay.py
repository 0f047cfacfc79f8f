"""Runs one rank of the reference replay: a small training with tensor and pipeline parallelism, as one Slurm task.

Each rank has a part of the weights of its pipeline stage. Forward and backward pass go through all stages with send and
receive, and each stage sums over its tensor group. Only whole numbers are summed, so sums are exact in any order:
replicas on other nodes must get equal bits, and so must the ranks of a tensor group. It runs with the Python of the
training, and needs only PyTorch.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import sys
from dataclasses import dataclass
from typing import Any

from slurm_robust.stoptime.rank_tools import join_group
from slurm_robust.stoptime.reference_step import SEED, hardware
from slurm_robust.stoptime.replay_results import MARK

STEPS = 24
CPU_WIDTH, CUDA_WIDTH = 96, 4096
_ROWS = 64
_SCALE = 1024.0
"""Activations are rounded to multiples of 1/1024 before they are summed: sums below 2**24 of these are exact."""
_LEAST, _MOST = -8.0, 8.0
_RATE = 0.05
_DIGEST_BYTES = 16


@dataclass
class ReplayRank:
    """The place of a rank, and the objects that it computes with."""

    torch: Any
    dist: Any
    rank: int
    world: int
    tensor: int
    device: str
    group: Any = None

    @property
    def stage(self) -> int:
        """Return the pipeline stage of this rank."""
        return self.rank // self.tensor

    @property
    def stages(self) -> int:
        """The number of pipeline stages."""
        return self.world // self.tensor


def main() -> None:
    """Take part in the replay: the arguments are `ROOT TENSOR_SIZE LIMIT_S`, other values are in Slurm's variables.

    The first line of stdin is the secret with which the ranks meet. Each rank prints when it begins to meet the others,
    and when it has met them.
    """
    import torch  # noqa: PLC0415 (seconds; and nothing else of ours may load it)
    import torch.distributed as dist  # noqa: PLC0415 (the same)

    tensor, limit_s = int(sys.argv[2]), float(sys.argv[3])
    rank, world = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    device = _device(torch)
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = False
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    secret, marks = sys.stdin.readline().strip(), iter(("joining", "joined"))
    if not secret:
        raise SystemExit("no secret came over stdin")
    port, place = int(os.environ["MASTER_PORT"]), {"device": device, "rank": rank, "world": world}
    spec = {**place, "port": port, "secret": secret, "limit_s": limit_s, "mark": lambda: _tell(next(marks))}
    join_group(dist, spec, os.environ["MASTER_ADDR"])
    own = ReplayRank(torch, dist, rank, world, tensor, device)
    for stage in range(own.stages):
        made = dist.new_group(list(range(stage * tensor, (stage + 1) * tensor)))
        own.group = made if stage == own.stage else own.group
    digest = _train(own)
    everyone = _gathered(own, digest, None)
    kinds: list[Any] = [None] * world
    dist.all_gather_object(kinds, hardware(torch, device))
    if rank == 0:
        whole = hashlib.blake2b(b"".join(everyone), digest_size=_DIGEST_BYTES).hexdigest()
        _tell(f"digest {whole} {' + '.join(sorted(set(kinds)))}")
    # Ranks leave together: a rank that leaves early would close connections of the others.
    dist.barrier()
    dist.destroy_process_group()


def _tell(text: str) -> None:
    sys.stdout.write(f"{MARK}{text}\n")
    sys.stdout.flush()


def _device(torch: Any) -> str:
    if not torch.cuda.is_available():
        return "cpu"
    device = f"cuda:{int(os.environ['SLURM_LOCALID']) % torch.cuda.device_count()}"
    torch.cuda.set_device(device)
    return device


def _train(own: ReplayRank) -> bytes:
    """Make the steps; return a digest of all products, and of the final weights."""
    torch, width = own.torch, CPU_WIDTH if own.device == "cpu" else CUDA_WIDTH
    # Made on the CPU by its own generator, which gives the same bits on every machine.
    noise = torch.Generator().manual_seed(SEED + own.rank)
    up, down = (
        (torch.randn((width, width), generator=noise) * width**-0.5).to(own.device).requires_grad_() for _ in range(2)
    )
    bits = b""
    for step in range(STEPS):
        inputs = _received(own, own.stage - 1, _batch(own, step, width)).requires_grad_()
        wide = torch.nn.functional.linear(inputs, up)
        part = torch.nn.functional.linear(torch.nn.functional.gelu(wide), down)
        whole = _summed(own, part.detach())
        _same_in_group(own, whole, step)
        _send(own, own.stage + 1, inputs.detach() + whole)
        slope = _received(own, own.stage + 1, whole / _ROWS)
        part.backward(slope)
        _send(own, own.stage - 1, slope + _summed(own, inputs.grad))
        with torch.no_grad():
            for weight in (up, down):
                weight.sub_(_RATE * weight.grad)
                # Each product counts: later rounding can hide a wrong bit.
                bits += _digest(weight.grad)
                weight.grad = None
        bits += _digest(wide.detach()) + _digest(part.detach())
    return hashlib.blake2b(bits + _digest(up.detach()) + _digest(down.detach()), digest_size=_DIGEST_BYTES).digest()


def _batch(own: ReplayRank, step: int, width: int) -> Any:
    noise = own.torch.Generator().manual_seed(SEED + 100_000 + step)
    return own.torch.randn((_ROWS, width), generator=noise).to(own.device)


def _summed(own: ReplayRank, part: Any) -> Any:
    """Return the exact sum over the tensor group of the rounded parts."""
    whole = (part.clamp(_LEAST, _MOST) * _SCALE).round()
    own.dist.all_reduce(whole, group=own.group)
    return whole / (_SCALE * own.tensor)


def _received(own: ReplayRank, stage: int, otherwise: Any) -> Any:
    """Return what the rank of this place in another stage sends; `otherwise` if there is no such stage."""
    if not 0 <= stage < own.stages:
        return otherwise
    found = own.torch.empty_like(otherwise)
    own.dist.recv(found, src=own.rank + (stage - own.stage) * own.tensor)
    return found


def _send(own: ReplayRank, stage: int, what: Any) -> None:
    if 0 <= stage < own.stages:
        own.dist.send(what.contiguous(), dst=own.rank + (stage - own.stage) * own.tensor)


def _same_in_group(own: ReplayRank, whole: Any, step: int) -> None:
    """End with an error if the ranks of a tensor group have received different sums."""
    digests = _gathered(own, _digest(whole), own.group)
    if len(set(digests)) > 1:
        raise SystemExit(f"step {step}: the ranks of tensor group {own.stage} received different sums")


def _digest(tensor: Any) -> bytes:
    plain = tensor.cpu().contiguous()
    raw = ctypes.string_at(plain.data_ptr(), plain.numel() * plain.element_size())
    return hashlib.blake2b(raw, digest_size=_DIGEST_BYTES).digest()


def _gathered(own: ReplayRank, digest: bytes, group: Any) -> list[bytes]:
    mine = own.torch.tensor(list(digest), dtype=own.torch.uint8, device=own.device)
    count = own.dist.get_world_size(group)
    parts = [own.torch.empty_like(mine) for _ in range(count)]
    own.dist.all_gather(parts, mine, group=group)
    return [bytes(part.tolist()) for part in parts]
