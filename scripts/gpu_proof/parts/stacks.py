"""Stacks of a rank whose Python runs ahead of its GPU: do they come, what do they cost, and do they name the place?"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu_proof.outcome import Status, Step
from gpu_proof.place import ROOT, Place
from gpu_proof.rank_ahead import ENDLESS_AT, LOGS_EVERY
from slurm_robust.supervise.agent.capture import py_spy_dump, threads_of
from slurm_robust.supervise.reported.watch_step import py_spy_path

DUMPS = 40
EVERY_S = 0.25
_PLAIN_S = 5.0
_STARTS_S = 60.0
_COME = 0.9
"""py-spy does not stop the process, so some stacks are torn while it runs; a rank that waits has all of its own."""


def steps(place: Place) -> Iterator[Step]:
    """A rank that trains; then one whose kernel does not end."""
    yield _training(place)
    yield _endless(place)


def _training(place: Place) -> Step:
    """Dumps now and then of a rank that trains, and its steps with and without them."""
    name = "a rank that runs ahead"
    folder = place.folder / "ahead"
    count, plain_s = (8, 1.0) if place.rehearsal else (DUMPS, _PLAIN_S)
    with _rank(place, folder) as pid:
        if not _reached(folder, 2 * LOGS_EVERY):
            return Step(name, Status.FAILED, f"it does not train: {_said(folder)}")
        began = len(_steps_s(folder))
        time.sleep(plain_s)
        before_s = _steps_s(folder)[began:]
        dumps = [_dump(pid) for _ in _paced(count)]
        during_s = _steps_s(folder)[began + len(before_s) :]
    places: Counter[str] = Counter(_place_in_program(dump) for dump, _ in dumps if not isinstance(dump, str))
    errors: Counter[str] = Counter(dump for dump, _ in dumps if isinstance(dump, str))
    came = sum(places.values()) / len(dumps)
    took_ms = 1e3 * statistics.median(took_s for _, took_s in dumps)
    longer = statistics.fmean(during_s) / statistics.fmean(before_s) if before_s and during_s else 0.0
    figures = {
        "dumps": len(dumps), "came": came, "dump_ms": took_ms, "where": dict(places), "errors": dict(errors),
        "step_ms": 1e3 * statistics.fmean(before_s or [0.0]), "step_ratio": longer,
    }  # fmt: skip
    where = ", ".join(f"{100 * n / len(dumps):.0f} % {place}" for place, n in places.most_common())
    said = f"{100 * came:.0f} % of {len(dumps)} dumps came, {took_ms:.0f} ms each: {where}"
    said += f"; a step takes {longer:.3f} times as long beside them, four a second"
    # A rehearsal shares its cores with other tests.
    held = came >= (_COME / 2 if place.rehearsal else _COME)
    return Step(name, Status.HELD if held else Status.FAILED, said, figures)


def _endless(place: Place) -> Step:
    """All dumps of a rank whose kernel does not end must be whole, and show where Python waits."""
    name = "a rank whose kernel does not end"
    folder = place.folder / "endless"
    with _rank(place, folder, "endless") as pid:
        if not _reached(folder, ENDLESS_AT + 1):
            return Step(name, Status.FAILED, f"it does not get there: {_said(folder)}")
        time.sleep(1.0)
        dumps = [_dump(pid)[0] for _ in _paced(4)]
    places = [dump if isinstance(dump, str) else _place_in_program(dump) for dump in dumps]
    held = set(places) == {"never_ends"}
    deepest = sorted({_frames(dump)[-1] for dump in dumps if not isinstance(dump, str) and _frames(dump)})
    figures: dict[str, Any] = {"places": places, "deepest": deepest}
    return Step(name, Status.HELD if held else Status.FAILED, f"{len(places)} dumps: {', '.join(set(places))}", figures)


@contextlib.contextmanager
def _rank(place: Place, folder: Path, *words: str) -> Iterator[int]:
    folder.mkdir()
    device = "cpu" if place.rehearsal else "cuda"
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "gpu_proof.rank_ahead", str(folder), device, *words],
            cwd=ROOT / "scripts",
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def _reached(folder: Path, steps: int) -> bool:
    until_s = time.monotonic() + _STARTS_S
    while time.monotonic() < until_s:
        if len(_steps_s(folder)) >= steps:
            return True
        time.sleep(0.1)
    return False


def _steps_s(folder: Path) -> list[float]:
    path = folder / "steps"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [float(line) for line in lines if line.endswith("\n")]


def _said(folder: Path) -> str:
    return (folder / "output").read_text(errors="replace")[-1000:]


def _paced(count: int) -> Iterator[int]:
    for number in range(count):
        yield number
        time.sleep(EVERY_S)


def _dump(pid: int) -> tuple[Any, float]:
    """As an agent takes it: threads, or why there are none; and the seconds it took."""
    began_s = time.perf_counter()
    found = py_spy_dump(py_spy_path(), pid, 5.0)
    took_s = time.perf_counter() - began_s
    return (found if isinstance(found, str) else threads_of(found, pid)), took_s


def _frames(threads: list[dict[str, Any]]) -> list[str]:
    main = [thread for thread in threads if thread["main"]]
    return [frame[0] for frame in main[0]["frames"]] if main else []


def _place_in_program(threads: list[dict[str, Any]]) -> str:
    """Which of the program's own functions the main thread is in."""
    own = [frame for frame in _frames(threads) if frame in ("train_step", "wait_for_loss", "never_ends")]
    return own[-1] if own else "elsewhere"
