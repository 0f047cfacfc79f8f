"""The whole look's edges: what it writes into logs, and what it does where it can keep nothing."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from slurm_robust.nodecheck.engine import runner
from slurm_robust.nodecheck.engine.context import Context
from slurm_robust.nodecheck.engine.finding import Finding, Status
from slurm_robust.nodecheck.engine.registry import Check
from slurm_robust.nodecheck.stages import stage_run


@pytest.fixture
def syslog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> socket.socket:
    """Takes what would go to /dev/log."""
    path = str(tmp_path / "log")
    monkeypatch.setattr(stage_run, "SYSLOG", path)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.bind(path)
    made.settimeout(5)
    return made


def test_a_line_is_one_printable_line_wherever_it_goes(
    syslog: socket.socket, capsys: pytest.CaptureFixture[str]
) -> None:
    """Newlines, escape sequences and NUL of a process's or device's name forge no line and move no cursor."""
    stage_run.logger("srobust-prolog", {"SLURM_JOB_ID": "42"})(
        "n1: 3 processes (\x1b[2Jevil\nsrobust-prolog: n1: fit\0)"
    )
    said = capsys.readouterr().err
    assert said == "srobust-prolog: job 42: n1: 3 processes ( [2Jevil srobust-prolog: n1: fit )\n"
    with contextlib.closing(syslog):
        record = syslog.recv(4096).decode()
    assert record.startswith("<28>")
    assert record.endswith(said.strip())


def test_a_logger_that_hangs_is_not_waited_for(syslog: socket.socket) -> None:
    """Its queue is full and nobody reads: the look goes on at once."""
    log = stage_run.logger("srobust-prolog", {})
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


class Flapping:
    """A check that finds these, one after another."""

    def __init__(self, folder: Path, *finds: Status) -> None:
        self.looks = folder / "looks"
        self.finds = finds

    def probe(self, context: Context, options: object) -> dict[str, int]:
        """Which look this is; each is made in another process."""
        number = len(self.looks.read_text()) if self.looks.exists() else 0
        self.looks.write_text("x" * (number + 1))
        return {"look": number}

    def judge(self, facts: dict[str, int], options: object) -> Finding:
        """What this look finds."""
        return Finding(self.finds[facts["look"]], "link", "eth0 is down")


class Twice(NamedTuple):
    """What the looks of one run find, and what comes of it."""

    stage: str
    strikes: int
    finds: tuple[Status, ...]
    refuses: bool
    words: str = ""


@pytest.mark.parametrize(
    "case",
    [
        Twice("prolog", 2, (Status.FAIL, Status.PASS), refuses=False, words="eth0 is down: not so a second later"),
        Twice("prolog", 2, (Status.FAIL, Status.FAIL), refuses=True),
        Twice("epilog", 2, (Status.FAIL, Status.WARN), refuses=False, words="not so a second later"),
        Twice("prolog", 2, (Status.FAIL, Status.UNKNOWN), refuses=False, words="not so a second later"),
        Twice("prolog", 1, (Status.FAIL,), refuses=True),
        Twice("periodic", 2, (Status.FAIL,), refuses=False, words="run 1 of 2"),
    ],
)
def test_what_comes_and_goes_is_looked_at_twice_also_before_a_job(
    case: Twice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A check with strikes: in the health check over several looks, elsewhere a second later; no verdict is left."""
    flapping = Flapping(tmp_path, *case.finds)
    stages = ("prolog", "epilog", "periodic", "full")
    check = Check("ethernet", "?", "?", "?", stages, flapping.probe, flapping.judge, strikes=case.strikes)
    monkeypatch.setattr(stage_run.registry, "select", lambda *a: [check])
    monkeypatch.setattr(stage_run, "SECOND_RUN_S", 0.01)
    monkeypatch.setattr(stage_run, "_act", lambda *a: 20)
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    config = tmp_path / "robust.yaml"
    config.write_text(f"nodecheck: {{kmsg: /dev/null, cache_dir: {tmp_path}/cache}}\n")
    assert stage_run.main(case.stage, str(config)) == (20 if case.refuses else 0)
    assert case.words in capsys.readouterr().err
    assert len(flapping.looks.read_text()) == len(case.finds)
    assert not (tmp_path / "cache/fresh").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's state is meant to be kept")
def test_where_nothing_can_be_kept_the_log_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A read-only or full /run: strikes would never add up, and nobody would know."""
    flapping = Flapping(tmp_path, Status.FAIL)
    check = Check("ethernet", "?", "?", "?", ("periodic",), flapping.probe, flapping.judge, strikes=2)
    monkeypatch.setattr(stage_run.registry, "select", lambda *a: [check])
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    (tmp_path / "no-folder").write_text("")
    config = tmp_path / "robust.yaml"
    config.write_text(f"nodecheck: {{kmsg: /dev/null, cache_dir: {tmp_path}/no-folder}}\n")
    assert stage_run.main("periodic", str(config)) == 0
    assert f"cannot write to {tmp_path}/no-folder" in capsys.readouterr().err
