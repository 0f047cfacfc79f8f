"""Runs NVIDIA's own tests if a node has them: `nvbandwidth`, `dcgmi diag`, and EUD if it is asked for.

Pure functions judge their JSON.

Formats: NVIDIA/DCGM, `nvvs/include/NvvsJsonStrings.h`, `testing/TestDiagManagerStrings.h` (releases 2 and 3: `DCGM GPU
Diagnostic`, results by `gpu_ids` or `gpu_id`), `testing/python3/dcgm_diag_schema.json` (release 4: `DCGM Diagnostic`,
results by `entity_group` and `entity_id`), `dcgmlib/dcgm_errors.h` (severities and categories); NVIDIA/nvbandwidth,
`json_output.cpp`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

_NO_FAULT_OF_THE_GPU = frozenset({0, 1, 3, 5})
"""DCGM's severities none, monitor, unknown and configuration: they are not a reason to take the node out."""
_NO_FAULT_CATEGORIES = frozenset({3, 4, 7, 8, 16})
"""DCGM's categories of software and of errors within DCGM: the test could not run."""
_KEPT = 4
_TERM_S = 3.0


@dataclass(frozen=True)
class ToolResult:
    """The result of one tool.

    Attributes:
        failed: Why the node fails, as sentences; empty if it passed.
        note: What could not be tested, as a sentence; empty if all was tested.
    """

    failed: tuple[str, ...] = ()
    note: str = ""


def judge_dcgm(text: str, *, tell_skips: bool = False) -> ToolResult:
    """Judge the output of `dcgmi diag -j`. A failure counts unless DCGM itself calls it one of software or set-up.

    Args:
        text: The output.
        tell_skips: Whether a skipped test gives a note: in a suite, a board skips tests of parts that it does not have.
    """
    try:
        found = json.loads(text[text.find("{") : text.rfind("}") + 1])
        diag = found.get("DCGM Diagnostic") or found.get("DCGM GPU Diagnostic") or {}
        if error := diag.get("runtime_error") or found.get("runtime_error"):
            return ToolResult(note=f"dcgmi diag did not run: {_line(error)}")
        categories = diag["test_categories"]
        failed: list[str] = []
        excused: list[str] = []
        for test, result in _results(categories):
            status = str(result.get("status", "")).lower()
            if status == "skip" and tell_skips:
                excused.append(f"dcgmi diag {test} was skipped on {_subject(result)}")
            if status not in ("fail", "failed"):
                continue
            warnings = result.get("warnings") or []
            warnings = [warnings] if isinstance(warnings, (str, dict)) else warnings
            sentence = f"dcgmi diag {test} fails on {_subject(result)}: {_first(warnings)}"
            (excused if _excused(warnings) else failed).append(sentence)
    except (ValueError, KeyError, TypeError, AttributeError):
        return ToolResult(note=f"dcgmi diag printed no result that can be read: {_line(text)}")
    return ToolResult(tuple(failed[:_KEPT]), "; ".join(excused[:_KEPT]))


def _results(categories: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for category in categories:
        for test in category.get("tests") or []:
            for result in test.get("results") or []:
                yield str(test.get("name", "")), result


def _subject(result: dict[str, Any]) -> str:
    if "entity_id" in result:
        return f"{result.get('entity_group', 'entity')} {result['entity_id']}"
    return f"GPU {result.get('gpu_id', result.get('gpu_ids', '?'))}"


def _first(warnings: list[Any]) -> str:
    first = warnings[0] if warnings else "no reason given"
    return _line(first.get("warning", first) if isinstance(first, dict) else first)


def _excused(warnings: list[Any]) -> bool:
    """Return whether each reason has a code, and no reason is about the GPU."""
    coded = [w for w in warnings if isinstance(w, dict) and "error_severity" in w]
    return bool(coded) and all(
        w["error_severity"] in _NO_FAULT_OF_THE_GPU or w.get("error_category") in _NO_FAULT_CATEGORIES for w in coded
    )


def judge_nvbandwidth(text: str) -> ToolResult:
    """Judge the output of `nvbandwidth -j`: tests that could not run only give a note, since software is the reason.

    If data differ after a copy, it prints a line about it before its JSON (`kernels.cu`).
    """
    differ = next((line for line in text.splitlines() if "invalid value when checking" in line.lower()), "")
    if differ:
        return ToolResult((f"nvbandwidth copied wrong data: {_line(differ)}",))
    try:
        found = json.loads(text[text.find("{") : text.rfind("}") + 1])["nvbandwidth"]
        ended = [str(case["name"]) for case in found.get("testcases") or [] if case.get("status") == "Error"]
        error = _line(found.get("error", ""))
    except (ValueError, KeyError, TypeError, AttributeError):
        return ToolResult(note=f"nvbandwidth printed no result that can be read: {_line(text)}")
    if error != "nothing" or ended:
        return ToolResult(note=f"nvbandwidth did not run {', '.join(ended) or 'its tests'}; it says: {error}")
    return ToolResult()


def _line(text: Any) -> str:
    return " ".join(str(text).split())[:200] or "nothing"


@dataclass(frozen=True)
class _Tool:
    """One test of NVIDIA.

    Attributes:
        program: The program, looked for on PATH.
        words: The arguments of the program.
        needs_s: Time in which it ends on a healthy node of eight GPUs, with a margin; with less time it is not begun.
        judged: The function that judges its output.
        folder: A folder that must exist, too; empty if the program is enough.
    """

    program: str
    words: tuple[str, ...]
    needs_s: float
    judged: Callable[[str], ToolResult]
    folder: str = ""


_COPIES = ("host_to_device_memcpy_ce", "device_to_host_memcpy_ce", "device_to_device_memcpy_read_ce")
_EUD_FOLDER = "/usr/share/nvidia/diagnostic"
_TOOLS = {
    "nvbandwidth": _Tool("nvbandwidth", ("-j", "-t", *_COPIES), 30.0, judge_nvbandwidth),
    # NVIDIA: about two minutes.
    "dcgmi diag -r 2": _Tool("dcgmi", ("diag", "-r", "2", "-j"), 150.0, judge_dcgm),
    # NVIDIA does not name a time; its level 3 takes about fifteen minutes without this part.
    "dcgmi diag -r eud": _Tool(
        "dcgmi", ("diag", "-r", "eud", "-j"), 1800.0, partial(judge_dcgm, tell_skips=True), _EUD_FOLDER
    ),
}
EUD = "dcgmi diag -r eud"
RESERVE_S = 10.0
"""For the look at the GPUs' settings before and after."""
LEAST_S = _TOOLS["nvbandwidth"].needs_s + RESERVE_S
WANTED_S = 300.0
WITH_EUD_S = WANTED_S + _TOOLS[EUD].needs_s


def _output(argv: list[str], limit_s: float) -> str:
    """Return the output of a tool.

    Raises:
        subprocess.TimeoutExpired: the tool ran past the limit, and was ended.
        OSError: the tool cannot be started.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdout=pipe, stderr=pipe, text=True, errors="replace") as tool:
        end_s = min(_TERM_S, limit_s / 4)
        try:
            out, err = tool.communicate(timeout=limit_s - end_s)
        except subprocess.TimeoutExpired:
            tool.terminate()  # dcgmi then has its service end the diagnosis; killed outright, that would go on
            with contextlib.suppress(subprocess.TimeoutExpired):
                tool.communicate(timeout=end_s)
            tool.kill()
            raise
    return out or err


def run(limit_s: float, *, eud: bool = False) -> dict[str, Any]:
    """Run the installed tools, one after the other, each with all the remaining time, if that is enough for it.

    Args:
        limit_s: The limit for all tools together.
        eud: Whether NVIDIA's Extended Utility Diagnostics are run, too.

    Returns:
        `failed` and `notes`, sentences; `missing`, names of tools that are not installed.
    """
    found: dict[str, Any] = {"failed": [], "notes": [], "missing": []}
    end_s = time.monotonic() + limit_s - min(RESERVE_S, limit_s / 4)
    for name, tool in _TOOLS.items():
        if name == EUD and not eud:
            continue
        path = shutil.which(tool.program)
        if path is None or (tool.folder and not Path(tool.folder).is_dir()):
            found["missing"].append(name)
            continue
        left_s = end_s - time.monotonic()
        if left_s < tool.needs_s:
            # In tens, so that nodes that differ by a second share one sentence.
            found["notes"].append(
                f"{name} was not begun: it needs {tool.needs_s:.0f} s, about {max(0, left_s) // 10 * 10:.0f} s were "
                "left of the budget"
            )
            continue
        with _settings_kept(name, found["notes"]) if tool.program == "dcgmi" else contextlib.nullcontext():
            try:
                result = tool.judged(_output([path, *tool.words], left_s))
            except subprocess.TimeoutExpired:
                result = ToolResult(note=f"{name} did not end within {left_s:.0f} s")
            except OSError as error:
                result = ToolResult(note=f"{name} cannot be started: {error.strerror}")
        found["failed"] += result.failed
        found["notes"] += [result.note] if result.note else []
    return found


@contextlib.contextmanager
def _settings_kept(name: str, notes: list[str]) -> Iterator[None]:
    """Restore GPU settings that a diagnosis leaves changed, even if it is stopped; note those that stay changed."""
    # The supervisor reads this module's times without NVML.
    from slurm_robust.nodecheck.nvml import left_behind  # noqa: PLC0415

    context: Any = None
    before: Any = {}
    try:
        context = left_behind.here()
        before = left_behind.settings(context)
    except Exception as error:  # noqa: BLE001 (a fault of ours in this look is no reason not to test)
        notes.append(f"what {name} leaves on the GPUs is not known: {_line(error)}")
    try:
        yield
    finally:
        if context is not None and before:
            try:
                notes += left_behind.put_back(before, context, name)
            except Exception as error:  # noqa: BLE001 (the same)
                notes.append(f"what {name} left on the GPUs is not known: {_line(error)}")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that `finally` is run if the test is called off
    os.write(1, json.dumps(run(float(sys.argv[1]), eud="--eud" in sys.argv)).encode())
