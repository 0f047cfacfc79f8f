"""Makes names of frames comparable: a place has the same name on every rank and in every dump.

py-spy writes whole paths in JSON and short paths in text; this module makes both alike.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

from slurm_robust.localize.evidence import CapturedThread, StackFrame

MAX_KEPT = 16384
"""The most answers kept for each question; then all are forgotten at once. A big job has some thousand stacks."""

Answer = TypeVar("Answer")
_Stack = tuple[StackFrame, ...]

_PACKAGES = re.compile(r".*/(?:site|dist)-packages/")
_STDLIB = re.compile(r".*/(?:python\d+\.zip|lib(?:64)?/(?:python|pypy)\d+\.\d+[a-z]*)/")
_CHECKOUT = re.compile(r".*/(?=(?:megatron/(?:core|training|legacy)|deepspeed/(?:comm|runtime))/)")
"""Matches packages that are run from a checkout as often as they are installed."""
_INDUCTOR = re.compile(r".*/torchinductor_[^/]+/.*")
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{4,}")
_GENERATED = re.compile(r"<(eval_with_key|ipython-input|stdin|string)[^>]*>(?:\.\d+)?")


@lru_cache(maxsize=16384)
def short_file(path: str) -> str:
    """Return a path as people write it: `torch/utils/data/dataloader.py`, `threading.py`, `project/train.py`.

    Installed packages and the standard library lose everything before the package; other files keep two parts.
    """
    path = path.replace("\\", "/")
    if _INDUCTOR.match(path):
        return "torchinductor/generated.py"
    for installed in (_PACKAGES, _STDLIB, _CHECKOUT):
        if match := installed.match(path):
            return path[match.end() :]
    path = _GENERATED.sub(r"<\1>", path)
    return "/".join(path.rsplit("/", 2)[-2:]) if path.startswith("/") else path


@lru_cache(maxsize=16384)
def short_function(name: str) -> str:
    """Return the function's own name, without the class that Python 3.11 and later put before it."""
    return name.rsplit("<locals>.", 1)[-1].rsplit(".", 1)[-1]


@lru_cache(maxsize=16384)
def _clean(name: str) -> str:
    return _GENERATED.sub(r"<\1>", _ADDRESS.sub("0x…", name))


def label(frame: StackFrame, lines: bool = True) -> str:
    """Return the frame as `function (file:line)`, the form of `model.StackClass.stack`."""
    line = f":{frame.line}" if lines and frame.line else ""
    return f"{_clean(frame.function)} ({short_file(frame.file)}{line})"


def labels(frames: tuple[StackFrame, ...], lines: bool = True) -> tuple[str, ...]:
    """Return the labels of all frames, in their order."""
    return tuple(label(frame, lines) for frame in frames)


def main_thread(threads: tuple[CapturedThread, ...]) -> CapturedThread | None:
    """Return the main thread, or the only thread; None if the main thread is not there."""
    for thread in threads:  # asked for each process of each rank: a generator takes twice the time
        if thread.main:
            return thread
    return threads[0] if len(threads) == 1 else None


def own_frames(frames: tuple[StackFrame, ...]) -> tuple[StackFrame, ...]:
    """Return the frames that a process runs itself.

    The stack of a forked child begins with its parent's frames; its own begin at multiprocessing's `_bootstrap`.
    """
    for index in range(len(frames) - 1, -1, -1):
        frame = frames[index]
        if short_function(frame.function) == "_bootstrap" and short_file(frame.file) == "multiprocessing/process.py":
            return frames[index:]
    return frames


def by_identity(question: Callable[[_Stack, str], Answer]) -> Callable[[_Stack, str], Answer]:
    """Keep the answers to a pure question about frames and one word, by the identity of the frames.

    Equal stacks of thousands of ranks are one object. Comparing or hashing thirty frames costs more than most questions
    about them, but comparing identities costs nothing. Each answer is kept with its frames, so that their identity is
    not used again meanwhile.
    """
    kept: dict[tuple[int, str], tuple[_Stack, Answer]] = {}

    def ask(frames: _Stack, word: str = "") -> Answer:
        key = (id(frames), word)
        known = kept.get(key)
        if known is not None and known[0] is frames:
            return known[1]
        answer = question(frames, word)
        if len(kept) >= MAX_KEPT:
            kept.clear()
        kept[key] = (frames, answer)
        return answer

    return ask
