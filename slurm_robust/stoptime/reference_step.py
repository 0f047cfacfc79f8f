"""Runs one training step of a small reference model with fixed weights and input, and digests the result.

It runs in a rank that `rank_server` forked, with the Python of the training. It needs PyTorch and nothing else.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SEED = 20251
CPU_WIDTH, CUDA_WIDTH = 96, 2048
"""Width of the model: on a GPU the products fill all its processors; on a CPU they take milliseconds."""
_HEADS = 4
_ROWS = 64
_LEARNING_RATE, _DECAY, _SQUARE_DECAY, _EPSILON = 1e-3, 0.9, 0.999, 1e-8


def hardware(torch: Any, device: str) -> str:
    """Return the class of a device: devices with an equal text must get equal bits."""
    library = f"torch {torch.__version__}"
    if device == "cpu":
        return f"{_cpu_model()}, {torch.backends.cpu.get_cpu_capability()}, {library}"
    found = torch.cuda.get_device_properties(device)
    return f"{found.name}, {found.multi_processor_count} SMs, {found.major}.{found.minor}, {library}"


def _cpu_model() -> str:
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines:
            return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "CPU")
    except OSError:
        return platform.machine() or "CPU"


def run(device: str, repeats: int) -> dict[str, Any]:
    """Make the step `repeats` times from the same start.

    Returns:
        `hardware`, the device's class, and `digests`, one for each repeat.
    """
    import torch  # noqa: PLC0415 (the rank server has loaded it; nothing else of ours may)

    # No operation below sums with atomics, and cuBLAS sums in one order with a workspace of its own
    # (CUBLAS_WORKSPACE_CONFIG, PyTorch's notes on reproducibility). torch.use_deterministic_algorithms would load the
    # compiler, which takes seconds.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(1)  # Sums would depend on how many cores a node gives.
    torch.backends.cuda.matmul.allow_tf32 = False
    width = CPU_WIDTH if device == "cpu" else CUDA_WIDTH
    digests = [_digest(_step(torch, device, width)) for _ in range(repeats)]
    return {"hardware": hardware(torch, device), "digests": digests}


def _weights(torch: Any, device: str, width: int) -> list[Any]:
    # Made on the CPU by its own generator, which gives the same bits on every machine.
    noise = torch.Generator().manual_seed(SEED)
    shapes = [(3 * width, width), (width, width), (4 * width, width), (width, 4 * width)]
    made = [torch.randn(shape, generator=noise) * shape[1] ** -0.5 for shape in shapes]
    return [weight.to(device).requires_grad_() for weight in made]


def _step(torch: Any, device: str, width: int) -> list[Any]:
    """Return products, loss, parameters and gradients of one step of Adam on one block of a transformer."""
    weights = _weights(torch, device, width)
    noise = torch.Generator().manual_seed(SEED + 1)
    inputs = torch.randn((2, _ROWS, width), generator=noise).to(device)
    targets = torch.randn((2, _ROWS, width), generator=noise).to(device)
    found: list[Any] = []
    loss = (_block(torch, inputs, weights, found) - targets).square().mean()
    loss.backward()
    found += [loss, *_adam(torch, weights)]
    if device != "cpu":
        # The products again with half the bits, which other units of a GPU compute.
        halves = [weight.detach().bfloat16().requires_grad_() for weight in weights]
        loss = (_block(torch, inputs.bfloat16(), halves, found).float() - targets).square().mean()
        loss.backward()
        found += [loss, *(half.grad for half in halves)]
    return found


def _block(torch: Any, inputs: Any, weights: list[Any], found: list[Any]) -> Any:
    """Return the block's output; each product is added to `found`, too, since later rounding can hide a wrong bit."""
    joined, out, up, down = weights
    functional = torch.nn.functional
    width = inputs.shape[-1]
    mixed = functional.linear(functional.layer_norm(inputs, (width,)), joined)
    query, key, value = (part.unflatten(-1, (_HEADS, -1)).transpose(1, 2) for part in mixed.chunk(3, dim=-1))
    scores = query @ key.transpose(-1, -2) * (width // _HEADS) ** -0.5
    heads = torch.softmax(scores, dim=-1) @ value
    hidden = inputs + functional.linear(heads.transpose(1, 2).flatten(-2), out)
    wide = functional.linear(functional.layer_norm(hidden, (width,)), up)
    last = functional.linear(functional.gelu(wide), down)
    found += [mixed, scores, heads, hidden, wide, last]
    return hidden + last


def _adam(torch: Any, weights: list[Any]) -> Iterable[Any]:
    """Yield each parameter after Adam's first step, and its gradient; PyTorch's own optimizer loads in a second."""
    with torch.no_grad():
        for weight in weights:
            momentum = weight.grad * (1 - _DECAY)
            square = weight.grad.square() * (1 - _SQUARE_DECAY)
            corrected = (square / (1 - _SQUARE_DECAY)).sqrt() + _EPSILON
            yield weight - _LEARNING_RATE * (momentum / (1 - _DECAY)) / corrected
            yield weight.grad


def _digest(tensors: Iterable[Any]) -> str:
    """Return a digest of all bits; NaNs count as the bits that they are."""
    made = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        plain = tensor.detach().cpu().contiguous()
        made.update(ctypes.string_at(plain.data_ptr(), plain.numel() * plain.element_size()))
    return made.hexdigest()
