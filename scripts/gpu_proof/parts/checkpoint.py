"""`Checkpointer` with its state on a GPU: is it whole, what does a step stand still for, and what does a kill leave?"""

from __future__ import annotations

import contextlib
import io
import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from ckpt import beside, ways
from ckpt.ways import OURS, UNTIL

from gpu_proof.digest import digest
from gpu_proof.outcome import Status, Step
from gpu_proof.place import ROOT, Place

SIZE_BYTES, REHEARSED_BYTES = 4 << 30, 16 << 20
ROUNDS = 5
EXPOSED_SHARE = 0.05
"""The target: so much of the copy, at most, may make a step longer."""
_COPIES_IN_A_STEP = 3
"""A real step takes seconds, and a GPU's share of the state is copied in tenths of one."""
_MOST_TOKENS = 1 << 17
_KILLS_S = 45.0


def steps(place: Place) -> Iterator[Step]:
    """Whole after loading, the cost beside torch's own ways, killed in the middle."""
    device = "cpu" if place.rehearsal else "cuda"
    if not place.rehearsal and not torch.cuda.is_available():
        yield Step("Checkpointer", Status.NOT_RUN, "torch sees no CUDA device")
        return
    torch.set_num_threads(1)
    size_bytes = REHEARSED_BYTES if place.rehearsal else SIZE_BYTES
    state = beside.training(size_bytes, device)
    yield _same_after_loading(place, state, size_bytes, device)
    yield from _costs(place, state)
    yield _killed(place, device)


def _same_after_loading(place: Place, state: dict[str, Any], size_bytes: int, device: str) -> Step:
    """Another process loads what was saved: every bit is the same. The driver takes the buffers that copies go to."""
    name = "a checkpoint is loaded bit for bit"
    folder = place.folder / "whole"
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        save = ways.prepared((OURS,), state, _made(folder))[OURS]
        saved = save(1)
        saved.written()
    found = place.python("-m", "gpu_proof.load_state", str(folder), str(size_bytes), device, limit_s=120)
    if found.returncode:
        return Step(name, Status.FAILED, f"exit code {found.returncode}: {found.stderr[-1500:]}")
    loaded = json.loads(found.stdout.splitlines()[-1])
    same = (loaded["step"], loaded["digest"]) == (1, digest(ways.tensors(state)))
    told = f"step {loaded['step']} from {loaded['source']} in {loaded['took_s']:.2f} s"
    if not same:
        return Step(name, Status.FAILED, f"{told}: other bytes than were saved", loaded)
    if "are slow" in said.getvalue():
        return Step(name, Status.FAILED, f"{told}, but the driver did not take the buffers: {said.getvalue()}", loaded)
    return Step(name, Status.HELD, told, loaded)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _costs(place: Place, state: dict[str, Any]) -> Iterator[Step]:
    """Each way to save, in steps that compute some times as long as the copy takes."""
    copy_s = _copy_s(state)
    batch = _batch(state, copy_s)
    plain_s = statistics.median(beside.step(state, batch=batch) for _ in range(3))
    size_bytes = sum(tensor.nbytes for tensor in ways.tensors(state))
    figures = {"state_bytes": size_bytes, "copy_ms": 1e3 * copy_s, "step_ms": 1e3 * plain_s, "batch": batch}
    said = f"{size_bytes / 1e9:.2f} GB are copied in {1e3 * copy_s:.1f} ms ({size_bytes / copy_s / 1e9:.1f} GB/s)"
    yield Step("the copy alone", Status.HELD, f"{said}; a step takes {1e3 * plain_s:.0f} ms", figures)
    compared = [UNTIL, OURS, "torch.save", "async_save", ways.KEPT]
    if not place.rehearsal:
        compared += [ways.PINNED, ways.PINNED_STAGED]
    for way in compared:
        if place.left_s < _KILLS_S / 2 and not place.rehearsal:
            yield Step(way, Status.NOT_RUN, "no time was left")
            continue
        yield _cost(place, way, state, batch, copy_s)


def _cost(place: Place, way: str, state: dict[str, Any], batch: int, copy_s: float) -> Step:
    """What a save adds to the step that makes it, and to all steps until it is written."""
    folder = _made(place.folder / way.replace(" ", "-").replace(",", ""))
    try:
        save = ways.prepared((way,), state, folder)[way]
        rounds = 1 if place.rehearsal else ROUNDS
        turns = [beside.turn(save, number, state, batch) for number in range(rounds + 1)][1:]
    except Exception as error:  # noqa: BLE001 (one way that this torch does not have costs no other way its turn)
        ours = way in (OURS, UNTIL)
        return Step(way, Status.FAILED if ours else Status.NOT_RUN, f"{type(error).__name__}: {error}"[:1500])
    first_s = statistics.median(took.first_s for took in turns)
    all_s = statistics.median(took.all_s for took in turns)
    share = first_s / copy_s
    figures = {"first_ms": [1e3 * t.first_s for t in turns], "all_ms": [1e3 * t.all_s for t in turns], "exposed": share}
    said = f"the step that saves takes {1e3 * first_s:.1f} ms longer: {100 * share:.0f} % of the copy"
    said += f"; all steps until it is written, {1e3 * all_s:.1f} ms"
    if way == UNTIL:
        # On a CPU both need the same memory: there the share says nothing.
        met = place.rehearsal or share <= EXPOSED_SHARE
        return Step(way, Status.HELD if met else Status.FAILED, f"{said} (target {100 * EXPOSED_SHARE:.0f} %)", figures)
    return Step(way, Status.HELD, said, figures)


def _copy_s(state: dict[str, Any]) -> float:
    """A plain copy of the state into memory of this machine that the driver knows, the median of a few."""
    source = ways.tensors(state)
    on_gpu = source[0].is_cuda
    target = [torch.empty_like(tensor, device="cpu", pin_memory=on_gpu) for tensor in source]
    took_s = []
    for _ in range(4):
        if on_gpu:
            torch.cuda.synchronize()
        began_s = time.perf_counter()
        for into, out in zip(target, source, strict=True):
            into.copy_(out, non_blocking=True)
        if on_gpu:
            torch.cuda.synchronize()
        took_s.append(time.perf_counter() - began_s)
    return statistics.median(took_s[1:])


def _batch(state: dict[str, Any], copy_s: float) -> int:
    """So many tokens that a step takes `_COPIES_IN_A_STEP` copies."""
    batch = 16
    while batch < _MOST_TOKENS:
        beside.step(state, batch=batch)
        if beside.step(state, batch=batch) >= _COPIES_IN_A_STEP * copy_s:
            break
        batch *= 2
    return batch


def _killed(place: Place, device: str) -> Step:
    """Ranks, persisters and agents are killed at each stage of copying and writing: scripts/kill_saves.py."""
    name = "kill -9 in the middle of a save"
    if place.left_s < _KILLS_S / 2:
        return Step(name, Status.NOT_RUN, "no time was left")
    rounds = 2 if place.rehearsal else max(2, int(min(place.left_s, 3 * _KILLS_S) / 8))
    words = ["--rounds", str(rounds), "--stages", "save", "--device", device]
    done = place.run([sys.executable, str(ROOT / "scripts" / "kill_saves.py"), *words], place.left_s)
    said = " ".join((done.stdout.strip() or done.stderr.strip())[-1500:].split())
    return Step(name, Status.FAILED if done.returncode else Status.HELD, said)
