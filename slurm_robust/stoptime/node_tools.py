"""NVIDIA's own tests, where a node has them: `dcgmi diag -r 2 -j` and `nvbandwidth -j`. Their JSON is judged purely.

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
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

_NO_FAULT_OF_THE_GPU = frozenset({0, 1, 3, 5})
"""DCGM's severities none, monitor, unknown and configuration: no reason to take the node out."""
_NO_FAULT_CATEGORIES = frozenset({3, 4, 7, 8, 16})
"""DCGM's categories of software and of errors within DCGM: the test could not run."""
_KEPT = 4
_TERM_S = 3.0


@dataclass(frozen=True)
class ToolResult:
    """What one tool found.

    Attributes:
        failed: Why the node fails, as sentences; empty where it passed.
        note: What could not be tested, as a sentence; empty where all was.
    """

    failed: tuple[str, ...] = ()
    note: str = ""


def judge_dcgm(text: str) -> ToolResult:
    """Judge what `dcgmi diag -j` printed. A failure counts unless DCGM itself calls it one of software or set-up."""
    try:
        found = json.loads(text[text.find("{") : text.rfind("}") + 1])
        diag = found.get("DCGM Diagnostic") or found.get("DCGM GPU Diagnostic") or {}
        if error := diag.get("runtime_error") or found.get("runtime_error"):
            return ToolResult(note=f"dcgmi diag did not run: {_line(error)}")
        categories = diag["test_categories"]
        failed: list[str] = []
        excused: list[str] = []
        for test, result in _results(categories):
            if str(result.get("status", "")).lower() not in ("fail", "failed"):
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
    """True where each reason has a code, and none speaks of the GPU."""
    coded = [w for w in warnings if isinstance(w, dict) and "error_severity" in w]
    return bool(coded) and all(
        w["error_severity"] in _NO_FAULT_OF_THE_GPU or w.get("error_category") in _NO_FAULT_CATEGORIES for w in coded
    )


def judge_nvbandwidth(text: str) -> ToolResult:
    """Judge what `nvbandwidth -j` printed: tests that could not run are a note, for their reason is the software's.

    Where data differ after a copy it prints so before its JSON (`kernels.cu`).
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


_TOOLS: dict[str, tuple[list[str], Callable[[str], ToolResult]]] = {
    "nvbandwidth": (
        ["-j", "-t", "host_to_device_memcpy_ce", "device_to_host_memcpy_ce", "device_to_device_memcpy_read_ce"],
        judge_nvbandwidth,
    ),
    "dcgmi": (["diag", "-r", "2", "-j"], judge_dcgm),
}


def _output(argv: list[str], limit_s: float) -> str:
    """What a tool printed.

    Raises:
        subprocess.TimeoutExpired: it ran past the limit, and has ended.
        OSError: it cannot be started.
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


def run(limit_s: float) -> dict[str, Any]:
    """Run the tools that are on PATH, one after the other, each for half of the time at most.

    Returns:
        `failed` and `notes`, sentences; `missing`, names of tools that are not installed.
    """
    found: dict[str, Any] = {"failed": [], "notes": [], "missing": []}
    for name, (words, judged) in _TOOLS.items():
        path = shutil.which(name)
        if path is None:
            found["missing"].append(name)
            continue
        try:
            result = judged(_output([path, *words], limit_s / 2))
        except subprocess.TimeoutExpired:
            result = ToolResult(note=f"{name} did not end within {limit_s / 2:.0f} s")
        except OSError as error:
            result = ToolResult(note=f"{name} cannot be started: {error.strerror}")
        found["failed"] += result.failed
        found["notes"] += [result.note] if result.note else []
    return found


if __name__ == "__main__":
    os.write(1, json.dumps(run(float(sys.argv[1]))).encode())
