"""Reads what py-spy prints: `py-spy dump --json`, and the plain text that people paste into tickets.

py-spy prints the innermost frame first; here the outermost is first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from slurm_robust.localize.evidence import CapturedThread, StackFrame

MAX_DUMP_BYTES = 32 * 2**20
"""Larger dumps are refused: a process with 1,000 threads of 60 frames writes about 15 MB."""
MAX_THREADS = 4096
MAX_FRAMES = 1024
"""The most frames kept of one thread, the innermost ones: deeper recursion does not tell more."""
_MAX_NAME_CHARS = 512

_HEAD = re.compile(r"(?:Process (?P<pid>\d+):.*|Python v\d.*)")
_THREAD = re.compile(r"Thread (?P<tid>0x[0-9a-fA-F]+|\d+)(?: \((?P<state>[a-z+]+)\))?(?:: \"(?P<name>.*)\")?\s*")
_FRAME = re.compile(r"\s+(?P<function>\S.*?) \((?P<file>[^()]*?)(?::(?P<line>\d+))?\)\s*")


class PySpyDumpError(ValueError):
    """A dump that cannot be read; the message says why."""


def parse(text: str) -> tuple[CapturedThread, ...]:
    """Read a dump of one process in either form.

    Raises:
        PySpyDumpError: it is neither, cut off, or too large.
    """
    if len(text) > MAX_DUMP_BYTES:
        raise PySpyDumpError(f"a dump of {len(text)} characters is refused (at most {MAX_DUMP_BYTES})")
    return parse_json(text) if text.lstrip()[:1] in ("[", "{") else parse_text(text)


def parse_json(text: str) -> tuple[CapturedThread, ...]:
    """Read the output of `py-spy dump --json`.

    Raises:
        PySpyDumpError: not JSON, or not of py-spy's shape.
    """
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PySpyDumpError(f"not JSON (half written?): {str(error)[:80]}") from None
    if not isinstance(raw, list):
        raise PySpyDumpError("not a list of threads, which `py-spy dump --json` writes")
    if len(raw) > MAX_THREADS:
        raise PySpyDumpError(f"{len(raw)} threads (at most {MAX_THREADS})")
    return tuple(_thread(item) for item in raw)


def _thread(raw: Any) -> CapturedThread:
    if not isinstance(raw, dict) or not isinstance(raw.get("frames"), list):
        raise PySpyDumpError("a thread without frames, which `py-spy dump --json` never writes")
    frames = tuple(_frame(item) for item in reversed(raw["frames"][:MAX_FRAMES]))
    name = _text(raw.get("thread_name"))
    thread_id = _whole(raw.get("os_thread_id"))
    return CapturedThread(
        frames=frames,
        name=name,
        os_thread_id=thread_id,
        # The kernel gives a process's first thread the process's own id.
        main=name == "MainThread" or (thread_id > 0 and thread_id == _whole(raw.get("pid"))),
        active=raw.get("active") is True,
        owns_gil=raw.get("owns_gil") is True,
    )


def _frame(raw: Any) -> StackFrame:
    if not isinstance(raw, Mapping):
        raise PySpyDumpError("a frame that is not an object")
    file = _text(raw.get("filename")) or _text(raw.get("short_filename"))
    return StackFrame(_text(raw.get("name")) or "?", file, _whole(raw.get("line")))


def _text(value: Any) -> str:
    return value[:_MAX_NAME_CHARS] if isinstance(value, str) else ""


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 else 0


def parse_text(text: str) -> tuple[CapturedThread, ...]:
    """Read the plain output of `py-spy dump`, with or without its heading.

    Raises:
        PySpyDumpError: no thread in it.
    """
    threads: list[CapturedThread] = []
    frames: list[StackFrame] = []
    head: re.Match[str] | None = None
    pid = 0

    def close() -> None:
        if head is not None:
            threads.append(_text_thread(head, frames, pid))

    for line in text.splitlines():
        found = _HEAD.fullmatch(line)
        if found:
            pid = _small(found["pid"]) or pid
            continue
        found = _THREAD.fullmatch(line)
        if found:
            close()
            head, frames = found, []
            if len(threads) >= MAX_THREADS:
                raise PySpyDumpError(f"more than {MAX_THREADS} threads")
            continue
        found = _FRAME.fullmatch(line)
        if head is not None and found and len(frames) < MAX_FRAMES:
            function, file = found["function"][:_MAX_NAME_CHARS], found["file"][:_MAX_NAME_CHARS]
            frames.append(StackFrame(function, file, _small(found["line"])))
    close()
    if not threads:
        raise PySpyDumpError("no line `Thread …`, which every `py-spy dump` prints")
    return tuple(threads)


def _text_thread(head: re.Match[str], frames: list[StackFrame], pid: int) -> CapturedThread:
    state = head["state"] or ""
    name = head["name"] or ""
    tid = head["tid"]
    thread_id = 0 if tid.startswith("0x") else _small(tid)
    return CapturedThread(
        frames=tuple(reversed(frames)),
        name=name[:_MAX_NAME_CHARS],
        os_thread_id=thread_id,
        main=name == "MainThread" or (thread_id > 0 and thread_id == pid),
        active=state.startswith("active"),
        owns_gil="gil" in state,
    )


def _small(digits: str | None) -> int:
    return int(digits) if digits and len(digits) <= 18 else 0
