"""A slice of the log benchmark: its figures are there, and nothing is lost. How fast it was is not judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).resolve().parents[2] / "benchmarks" / "compress_log.py"


def test_compress_log() -> None:
    """Each kind of log: all needles on the page, the page within its limit, memory within its bound."""
    command = [sys.executable, str(PROGRAM), "--json", "--quick", "--megabytes", "4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout)
    logs = report["figures"]["logs"]
    assert [log["kind"] for log in logs] == ["mixed", "words", "tracebacks"]
    for log in logs:
        assert log["needles_found"] == log["needles"] == 8
        assert log["seconds"] > 0
        assert log["wc_s"] > 0
    assert logs[0]["needles_printed"] == 8
    assert logs[0]["routine_lines"] > 10_000
    judged = {target["name"]: target["met"] for target in report["targets"]}
    assert all(judged[name] for name in ("memory above the interpreter's", "needles lost", "the printed page"))


def test_an_unknown_kind_is_wrong_usage() -> None:
    """The kinds there are are named."""
    command = [sys.executable, str(PROGRAM), "--kinds", "nonsense"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert "nonsense: there are" in done.stderr
