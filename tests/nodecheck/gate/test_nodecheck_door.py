"""The whole look's edges: what it writes into logs, and what it does where it can keep nothing."""

from __future__ import annotations

import contextlib
import socket
import time
from pathlib import Path

import pytest

from slurm_robust.nodecheck import door, runner
from slurm_robust.nodecheck.context import Context
from slurm_robust.nodecheck.finding import Finding, Status
from slurm_robust.nodecheck.registry import Check


@pytest.fixture
def syslog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> socket.socket:
    """Takes what would go to /dev/log."""
    path = str(tmp_path / "log")
    monkeypatch.setattr(door, "SYSLOG", path)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.bind(path)
    made.settimeout(5)
    return made


def test_a_line_is_one_printable_line_wherever_it_goes(
    syslog: socket.socket, capsys: pytest.CaptureFixture[str]
) -> None:
    """Newlines, escape sequences and NUL of a process's or device's name forge no line and move no cursor."""
    door.logger("srobust-prolog", {"SLURM_JOB_ID": "42"})("n1: 3 processes (\x1b[2Jevil\nsrobust-prolog: n1: fit\0)")
    said = capsys.readouterr().err
    assert said == "srobust-prolog: job 42: n1: 3 processes ( [2Jevil srobust-prolog: n1: fit )\n"
    with contextlib.closing(syslog):
        record = syslog.recv(4096).decode()
    assert record.startswith("<28>")
    assert record.endswith(said.strip())


def test_a_logger_that_hangs_is_not_waited_for(syslog: socket.socket) -> None:
    """Its queue is full and nobody reads: the look goes on at once."""
    log = door.logger("srobust-prolog", {})
    started_s = time.monotonic()
    for _ in range(2000):
        log("n1: something")
    assert time.monotonic() - started_s < 20
    syslog.close()
    log("n1: nobody there")


def test_a_finding_s_words_are_printable(tmp_path: Path) -> None:
    """Whatever a check took into its sentence."""
    check = Check(
        name="tasks",
        question="?",
        reads="?",
        cost="?",
        stages=("full",),
        probe=lambda context, options: {},
        judge=lambda facts, options: Finding(Status.WARN, "x", "\x1b]0;evil\x07 and\nmore", "look\x9b2J"),
    )
    (result,) = runner.run([check], Context(node="n1"), {}, 5.0).results
    assert result.finding.sentence == "]0;evil and more"
    assert result.finding.remedy == "look 2J"
