from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from slurm_robust.nodecheck.engine import registry, runner
from slurm_robust.nodecheck.engine.context import STAGES, Context
from slurm_robust.nodecheck.engine.finding import Finding, Fitness, NodeReport, Result, Status, fitness, shorten
from slurm_robust.nodecheck.engine.registry import Check, CheckError, Option

NODE = Context("n1")
PASS = Finding(Status.PASS, "fine", "fine")


def made(name: str, probe: Any, judge: Any = lambda facts, options: PASS, **more: Any) -> Check:
    """A check of these two functions."""
    return Check(name, "?", "nothing", "nothing", STAGES, lambda c, o: probe(), judge, **more)


def test_a_dead_mount_is_unknown_and_the_rest_of_the_suite_is_unharmed(tmp_path: Path) -> None:
    """nhc#95: one stale mount hung the whole run. Here its check ends at its deadline, the others answer."""
    pipe = tmp_path / "dead-mount"
    os.mkfifo(pipe)
    checks = [made("dead", pipe.read_text, deadline_s=0.2), made("healthy", dict)]
    started_s = time.monotonic()
    report = runner.run(checks, NODE, {}, 5.0)
    assert time.monotonic() - started_s < 30
    dead, healthy = report.results
    assert (dead.finding.status, dead.finding.reason) == (Status.UNKNOWN, "probe_timeout")
    assert "0.2 s" in dead.finding.sentence
    assert healthy.finding is PASS
    assert report.verdict is Fitness.UNKNOWN


def test_checks_run_at_the_same_time(tmp_path: Path) -> None:
    """Five of which each waits for all others to have begun: one after another, none would ever end."""
    names = [f"c{n}" for n in range(5)]

    def meet(name: str) -> None:
        (tmp_path / name).touch()
        while not all((tmp_path / other).exists() for other in names):
            time.sleep(0.01)

    report = runner.run([made(name, lambda name=name: meet(name)) for name in names], NODE, {}, 30.0)
    assert report.verdict is Fitness.FIT


def test_a_result_says_how_long_its_probe_took() -> None:
    """In milliseconds, from the moment it began."""
    report = runner.run([made("slow", lambda: time.sleep(0.1))], NODE, {}, 30.0)
    # The clock starts when the process has been started: on a busy machine the probe is a little ahead of it.
    assert report.results[0].duration_ms >= 50


def test_a_fault_of_ours_is_unknown_and_never_a_failure() -> None:
    """An exception in a probe or in a judge says so, with its words, and drains nothing."""

    def wrong(*_: Any) -> Any:
        raise KeyError("MemTotal")

    report = runner.run([made("probe", wrong), made("judge", dict, wrong)], NODE, {}, 5.0)
    assert [result.finding.status for result in report.results] == [Status.UNKNOWN] * 2
    assert [result.finding.reason for result in report.results] == ["probe_error", "judge_error"]
    assert all("MemTotal" in result.finding.sentence for result in report.results)


@pytest.mark.parametrize(
    ("statuses", "verdict"),
    [
        ([], "fit"),
        (["pass", "warn", "skip"], "fit"),
        (["pass", "unknown"], "unknown"),
        (["unknown", "fail", "pass"], "unfit"),
    ],
)
def test_the_verdict(statuses: list[str], verdict: str) -> None:
    """Only `fail` is unfit; unknown is not unhealthy; a warning does not keep a node from being fit."""
    assert fitness(Status(status) for status in statuses) is Fitness(verdict)


def test_the_json_has_the_documented_shape() -> None:
    """Node, verdict, checks; each with name, status, reason, remedy, evidence and duration_ms."""
    finding = Finding(Status.FAIL, "xid_79", "XID 79", "power-cycle", {"gpu": "0000:9b:00"})
    said = NodeReport("n1", "prolog", (Result("xid", finding, 1.26),)).to_json()
    assert said["node"] == "n1"
    assert said["verdict"] == "unfit"
    check = said["checks"][0]
    assert {"name", "status", "reason", "remedy", "evidence", "duration_ms"} <= check.keys()
    assert (check["status"], check["reason"], check["duration_ms"]) == ("fail", "xid_79", 1.3)


def test_a_sentence_fits_a_drain_reason() -> None:
    """One printable line of at most 200 characters, whatever the findings say."""
    long = Result("a", Finding(Status.FAIL, "x", "words\nand \x1b[31m" + "x" * 400))
    sentence = NodeReport("n1", "prolog", (long,)).sentence
    assert len(sentence) <= 200
    assert sentence.isprintable()
    assert shorten("a  b\tc") == "a b c"


def test_options_are_typed_and_named() -> None:
    """A wrong option names check, option and what there is; whole numbers pass for floats."""
    check = made("c", dict, options={"limit_s": Option(1.5, "s", "ours"), "codes": Option([], "", "")})
    chosen = check.settings({"limit_s": 2})
    assert (chosen["limit_s"], chosen["codes"], chosen["strikes"]) == (2.0, [], 1)
    with pytest.raises(
        CheckError, match=r"nodecheck\.options\.c\.limit: no such option \(it has: limit_s, codes, strikes"
    ):
        check.settings({"limit": 2})
    with pytest.raises(CheckError, match="is no list"):
        check.settings({"codes": 79})
    with pytest.raises(CheckError, match="is no float"):
        check.settings({"limit_s": True})


def test_an_unknown_check_offers_the_nearest() -> None:
    """`--only xd` means xid."""
    with pytest.raises(CheckError, match="did you mean xid"):
        registry.select("full", only=["xd"])
    with pytest.raises(CheckError, match="there are: xid, "):
        registry.select("full", disable=["zzzzzz"])


def test_every_registered_check_explains_itself() -> None:
    """Name, question, reading, cost, stages and every option with meaning and source."""
    checks = registry.select("full")
    assert [check.name for check in checks] == list(registry.NAMES)
    for check in checks:
        assert check.question.endswith("?")
        assert check.reads
        assert check.cost
        assert set(check.stages) <= set(STAGES)
        assert all(option.meaning and option.source for option in check.options.values())


def test_disable_wins_over_the_stage() -> None:
    """A check that is switched off runs in no stage."""
    names = [check.name for check in registry.select("prolog", disable=["shm", "xid"])]
    assert "shm" not in names
    assert "clock" not in names  # not a check of the prolog
    assert "memory" in names


ALL_CHECKS = """
import sys
from pathlib import Path
from slurm_robust.nodecheck.engine import registry, runner
from slurm_robust.nodecheck.engine.context import Context
stage, cache = sys.argv[1:]
report = runner.run(registry.select(stage), Context("vm", stage, cache_dir=Path(cache)), {}, 30.0)
print(report.verdict.name, {result.name: result.finding.sentence for result in report.results})
"""


@pytest.mark.parametrize("stage", STAGES)
def test_this_very_machine_is_fit(tmp_path: Path, stage: str) -> None:
    """A healthy machine, container or VM without a GPU: every stage says fit, also for an ordinary user.

    In a process of its own, as in life: one that was forked after torch has computed hangs when it computes.
    """
    # `filesystem` looks at this machine's own /tmp, which a test may not assume to be empty.
    argv = [sys.executable, "-c", ALL_CHECKS, stage, str(tmp_path / "cache")]
    said = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert said.startswith("FIT "), said


def test_what_one_probe_of_a_lane_read_serves_the_others() -> None:
    """A costly source (NVML, the kernel log) is read once a run, and anew in the next run."""
    reads: list[int] = []

    def probe(context: Context, options: Any) -> Any:
        def read() -> int:
            reads.append(1)
            return os.getpid()

        return [context.once("source", read), len(reads)]

    said: list[Any] = []

    def judge(facts: Any, options: Any) -> Finding:
        said.append(facts)
        return PASS

    checks = [Check(name, "?", "", "", STAGES, probe, judge, lane="shared") for name in ("a", "b")]
    for _ in range(2):
        runner.run(checks, NODE, {}, 5.0)
    assert [count for _, count in said] == [1, 1, 1, 1]
    assert len({pid for pid, _ in said}) == 2
    assert reads == []
