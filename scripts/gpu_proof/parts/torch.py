"""The checks that compute on every GPU, and whether one GPU computes the same twice, bit for bit."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from gpu_proof.outcome import Status, Step
from gpu_proof.place import Place

REPEATS = 20
WIDTH, DEPTH, BATCH = 1024, 8, 64


def steps(place: Place) -> Iterator[Step]:
    """The torch checks of the full stage, then digests of one training step on each GPU."""
    yield _checks(place)
    # cuBLAS gives the same sums each time only with a workspace of its own; it reads this when it is loaded.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    import torch  # noqa: PLC0415 (after what it reads when it is loaded)

    torch.use_deterministic_algorithms(True)
    devices = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    if place.rehearsal:
        devices = ["cpu"]
    if not devices:
        yield Step("digests", Status.NOT_RUN, "torch sees no CUDA device")
    of_models: dict[str, set[str]] = {}
    for device in devices:
        step, digest = _digests(place, device)
        yield step
        model = torch.cuda.get_device_name(device) if device != "cpu" else "CPU"
        of_models.setdefault(model, set()).add(digest)
    if len(devices) > 1:
        apart = {model: len(digests) for model, digests in of_models.items() if len(digests) > 1}
        said = f"models with several digests: {apart}" if apart else "GPUs of one model compute the same"
        yield Step("digests across GPUs", Status.FAILED if apart else Status.HELD, said)


def _checks(place: Place) -> Step:
    checks = place.checks("torch")
    bad = [f"{c['name']}: {c['sentence']}" for c in checks if c["status"] in ("fail", "unknown")]
    figures = {c["name"]: {k: c[k] for k in ("status", "sentence", "evidence", "duration_ms")} for c in checks}
    said = "; ".join(bad or [f"{c['name']}: {c['sentence']} ({c['duration_ms']:.0f} ms)" for c in checks])
    return Step("torch checks", Status.FAILED if bad else Status.HELD, said, figures)


def _digests(place: Place, device: str) -> tuple[Step, str]:
    """Forward, backward and AdamW from the same weights and input, many times."""
    began_s = time.perf_counter()
    repeats = 3 if place.rehearsal else REPEATS
    found = [training_digest(device) for _ in range(repeats)]
    took_ms = 1000 * (time.perf_counter() - began_s) / repeats
    same = len(set(found)) == 1
    said = (
        f"{repeats} times the same, {took_ms:.0f} ms each" if same else f"{len(set(found))} digests in {repeats} runs"
    )
    figures = {"digest": found[0], "different": len(set(found)), "repeats": repeats, "took_ms": took_ms}
    return Step(f"digests of {device}", Status.HELD if same else Status.FAILED, said, figures), found[0]


def training_digest(device: str) -> str:
    """SHA-256 of all weights and gradients after one step."""
    import torch  # noqa: PLC0415 (see above)

    from gpu_proof.digest import digest  # noqa: PLC0415 (the same)

    torch.manual_seed(7)
    layers = [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU()) for _ in range(DEPTH)]
    model = torch.nn.Sequential(*layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(BATCH, WIDTH).to(device)
    model(batch).square().mean().backward()
    optimizer.step()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return digest([*model.parameters(), *gradients])
