"""NVRx's log analysis, as far as it needs no language model: a baseline of `diagnose.py`, asked in another interpreter.

    python benchmarks/diagnose.py --nvrx PYTHON

PYTHON is an interpreter that can import `nvidia_resiliency_ext.attribution.restart_agent`, with httpx (which that
package loads for its language model; nothing is asked here). The wheels up to 0.4.1 do not have it: put `src` of a
checkout of https://github.com/NVIDIA/nvidia-resiliency-ext on that interpreter's path. This file runs in it, too, and
therefore imports the standard library alone.

Its first stage (L0A) reads a log and picks one line with a failure class. It says itself that neither tells whose fault
it is: that is its model's part. `BLAME` is therefore ours, and as kind as it can be read. A Python exception has no one
reading, so it is counted twice: as the program's, and as undecided.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

TIMEOUT_S = 600
BLAME = {
    "gpu_hardware_fault": "node",
    "peer_gpu_memory_access_failure": "node",
    "time_limit": "nobody",
    "user_cancelled": "nobody",
    "configuration_validation_failure": "program",
    "argument_validation_failure": "program",
    "artifact_or_path_not_found": "program",
    "checkpoint_compatibility_mismatch": "program",
    "shape_mismatch": "program",
    "filesystem_permission_denied": "program",
    "cuda_oom": "program",
    "nan_or_inf": "program",
    "bad_token_or_window": "program",
    "framework_crash": "either",
    "linux_oom_kill_confirmation": "either",
    "observed_distributed_operation_timeout": "either",
    "nccl_cascade": "either",
    "cuda_previous_error_cascade": "either",
}
"""Its failure class → whose fault that is, in our words. Any other class, and no answer, is `either`."""
_EXCEPTION = "observed_exception"
_POLICY_EVENT = "infra_policy_event"
"""Preemption and node failure alike; the line tells them apart."""


class NvrxAnswer(NamedTuple):
    """What it says of one log: its failure class and the line, both empty if it picks none."""

    failure_class: str
    line: str


class NvrxError(Exception):
    """It cannot be asked; the message says why."""


def blame(answer: NvrxAnswer, of_exception: str) -> str:
    """Whose fault the answer makes it; `of_exception` is what a Python exception counts as."""
    if answer.failure_class == _EXCEPTION:
        return of_exception
    if answer.failure_class == _POLICY_EVENT:
        return "node" if "node" in answer.line.lower() else "nobody"
    return BLAME.get(answer.failure_class, "either")


def ask(python: str, logs: Sequence[Sequence[str]]) -> list[NvrxAnswer]:
    """Its answer to each log.

    Raises:
        NvrxError: that interpreter does not run, has no such package, or ends badly.
    """
    try:
        done = subprocess.run(
            [python, __file__],
            input=json.dumps(list(logs)),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NvrxError(f"{python}: {error}") from None
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise NvrxError(f"{python}: {last[0][:200]}")
    return [NvrxAnswer(*told) for told in json.loads(done.stdout)]


def _answer() -> None:
    """In the other interpreter: logs on stdin, answers on stdout, both JSON."""
    from nvidia_resiliency_ext.attribution.restart_agent.l0 import build_l0_bundle  # noqa: PLC0415

    answers = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.log"
        for lines in json.load(sys.stdin):
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
            found = build_l0_bundle(str(path)).deterministic_primary_candidate
            number = found.line if found is not None else None
            line = lines[number - 1] if number is not None and number <= len(lines) else ""
            answers.append((found.failure_class if found is not None else "", line))
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    _answer()
