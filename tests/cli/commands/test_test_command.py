"""`srobust test`: wrong usage, and what cannot be tested."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from fake_slurm import FakeSlurm

from slurm_robust.cli.commands import test as test_module
from slurm_robust.cli.commands.test import _complete, _gres, _nodes_of_layout, _tell_slurm
from slurm_robust.cli.main import cli
from slurm_robust.cli.undecided import WrongUsageError
from slurm_robust.config.site import OwnJobsConfig
from slurm_robust.core.model import JobRef
from slurm_robust.marks.claim import Claim, render
from slurm_robust.slurm.client import Job, Node
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.stoptime.conclusion import TestReport


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "say what to test: --job ID, or -w NODES"),
        (["--job", "1", "--tests", "pears"], "--tests: pears: expected some of in-node,pairs,alignment,replay"),
        (["--job", "1", "--tests", ","], "--tests: no test"),
        (["--job", "1", "--budget", "5"], "--budget 5 is too small"),
        (["--job", "1", "--budget", "nan"], "--budget nan: expected a number of seconds"),
        (["--job", "1", "--budget", "inf"], "--budget inf: expected a number of seconds"),
        (["-w", "n[3"], "-w n[3: not a node list"),
        (["--job", "1", "-w", ""], "-w names no node"),
        (["--job", "1", "--reservation", "pool"], "leave out --job"),
        (["--jobs"], "No such option"),
        (["-w", "n1", "--tell-slurm"], "--tell-slurm needs the job in whose Comment the verdict is written"),
        (["--job", "1", "--replay", "./x"], "--replay and its sizes are for the test replay: add --tests replay"),
        (["--job", "1", "--tests", "replay", "--replay", "same"], "only srobust run --robust-replay=same knows"),
        (["--job", "1", "--tests", "replay", "--replay", " "], "--replay: the command is empty"),
        (["--job", "1", "--tests", "pairs", "--layout", "tp=2"], "--layout is for the tests alignment and replay"),
        (["--job", "1", "--tests", "replay", "--layout", "tp=0"], "--layout: layout: not understood: 'tp=0'"),
    ],
)
def test_wrong_usage_has_a_code_of_its_own(words: list[str], sentence: str) -> None:
    """64: 2 means that the tests could not tell."""
    done = CliRunner().invoke(cli, ["test", *words])
    assert done.exit_code == 64
    assert sentence in done.output


@pytest.mark.parametrize(
    ("words", "own", "job"), [([], "77", "77"), (["--job", "5"], "77", "5"), (["-w", "n1"], "77", None), ([], "", None)]
)
def test_within_an_allocation_its_own_nodes_are_tested(
    monkeypatch: pytest.MonkeyPatch, words: list[str], own: str, job: str | None
) -> None:
    """In salloc nobody knows the job's number; -w still means an allocation of its own."""
    targets: list[str] = []

    def job_target(_: object, job_id: str, wanted: object) -> None:
        targets.append(job_id)
        raise WrongUsageError("enough")

    def node_target(*_: object) -> None:
        raise WrongUsageError("enough")

    monkeypatch.setattr(test_module, "connect", lambda _: None)
    monkeypatch.setattr(test_module, "_job_target", job_target)
    monkeypatch.setattr(test_module, "_node_target", node_target)
    done = CliRunner().invoke(cli, ["test", *words], env={"SLURM_JOB_ID": own})
    assert targets == [job] * (job is not None)
    assert ("(SLURM_JOB_ID)" in done.output) == (job == "77")


@pytest.mark.parametrize(
    ("error", "code"), [(KeyboardInterrupt(), 130), (RuntimeError("a fault of ours"), 2), (SlurmError("no answer"), 2)]
)
def test_an_end_that_nobody_foresaw_blames_no_node(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    """Exit code 1 says that a node fails: no traceback and no Ctrl-C may leave it."""

    def fails(_: object) -> None:
        raise error

    monkeypatch.setattr(test_module, "connect", fails)
    assert CliRunner().invoke(cli, ["test", "--job", "1"]).exit_code == code


@pytest.mark.parametrize("error", [SlurmError("no answer"), RuntimeError("a fault of ours"), None])
def test_an_end_without_a_test_is_an_object_too(monkeypatch: pytest.MonkeyPatch, error: Exception | None) -> None:
    """With --json: Slurm does not answer, a fault of ours, a job that does not run. The exit code stays 2."""

    def connects(_: object) -> FakeSlurm:
        if error is not None:
            raise error
        return FakeSlurm()

    monkeypatch.setattr(test_module, "connect", connects)
    done = CliRunner().invoke(cli, ["test", "--job", "1", "--tests", "pairs", "--json"])
    assert done.exit_code == 2
    told = json.loads(done.stdout)
    assert (told["job"], told["verdict"], told["nodes"], told["tests"]) == ("1", "undecided", [], ["pairs"])
    assert (str(error) if error is not None else "job 1") in told["ended_early"]
    assert f"srobust test: {told['ended_early']}" in done.stderr


@pytest.mark.parametrize("closed", [1, 2])
def test_an_output_that_nobody_reads_blames_no_node(closed: int) -> None:
    """Of `| head -c 1`, say: the verdict was not read, so it is not told by the exit code either."""
    program = """if True:
        from slurm_robust.cli import main
        from slurm_robust.cli.commands import test
        from slurm_robust.stoptime.conclusion import TestReport
        def carried_out(run, *_):
            run._progress("starting")
            return TestReport(("n1",), ())
        test._job_target = lambda *_: test.StepTarget(("n1",), 1)
        test.connect = lambda *_: None
        test._carried_out = carried_out
        main.cli(["test", "--job", "1"])
    """
    reading, writing = os.pipe()
    os.close(reading)
    streams: dict[str, int] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    streams["stdout" if closed == 1 else "stderr"] = writing
    done = subprocess.run([sys.executable, "-c", program], check=False, **streams)  # type: ignore[call-overload]
    os.close(writing)
    assert done.returncode == 2


def test_names_of_tests_are_completed_behind_a_comma() -> None:
    """As the other lists are."""
    assert [item.value for item in _complete(None, None, "pairs,al")] == ["pairs,alignment"]  # type: ignore[arg-type]


def test_as_many_gpus_as_every_node_has_are_asked_for() -> None:
    """Slurm's text of a node's GPUs, with type, sockets and other resources; none if a node has none."""
    nodes = [Node("n1", "IDLE", gres="gpu:h100:8(S:0-1),nvme:2"), Node("n2", "IDLE", gres="gpu:4")]
    assert _gres(nodes) == "gpu:4"
    assert _gres([*nodes, Node("n3", "IDLE")]) == ""


def test_a_layout_gives_the_nodes_of_a_replica() -> None:
    """By the GPUs of a node; where Slurm knows none, or nothing is given, the number is asked for."""
    nodes = [Node("n1", "IDLE", gres="gpu:8"), Node("n2", "IDLE", gres="gpu:8")]
    assert _nodes_of_layout({"tp": 8, "pp": 4, "dp": 16}, nodes) == 4
    assert _nodes_of_layout({"tp": 2}, nodes) == 1
    for sizes, some in (({"tp": 8}, [Node("n1", "IDLE")]), ({}, nodes)):
        with pytest.raises(WrongUsageError, match="how many nodes one replica needs: --replay-nodes M"):
            _nodes_of_layout(sizes, some)


@pytest.mark.parametrize(("comment", "written"), [("my own words", 1), (render(Claim("watching", "a"), "words"), 0)])
def test_a_supervisors_claim_is_not_written_over(comment: str, written: int) -> None:
    """The Comment of a supervised job belongs to its supervisor; the verdict is printed all the same."""
    slurm = FakeSlurm()
    slurm.state.jobs[1] = Job(JobRef(1), "RUNNING", "ann", 1000, "main", comment=comment)
    _tell_slurm(slurm, "1", TestReport(("n1", "n2"), ()))
    assert slurm.state.jobs[1].comment.startswith("srobust-test: ") is bool(written)


@pytest.mark.parametrize(
    ("uid", "own", "asked"),
    [
        (0, OwnJobsConfig(account="ops"), ("--account=ops", "--partition=train")),
        (0, OwnJobsConfig(qos="checks", partition="all"), ("--qos=checks", "--partition=all")),
        (1000, OwnJobsConfig(account="ops"), ()),
    ],
)
def test_roots_test_runs_as_the_sites_own_jobs(
    uid: int, own: OwnJobsConfig, asked: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root often has no account that may run there; a user's test is the user's own."""
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    fake = FakeSlurm()
    for name, partitions in (("n1", ("gpu", "train", "all")), ("n2", ("train", "all"))):
        fake.state.nodes[name] = replace(fake.state.nodes[name], partitions=partitions)
    assert test_module._node_target(fake, ("n1", "n2"), None, own).admission == asked


@pytest.mark.parametrize(
    ("words", "used"),
    [((), "/opt/torch/bin/python"), (("--python", "/home/ann/env/bin/python"), "/home/ann/env/bin/python")],
)
def test_the_sites_python_has_pytorch(
    words: tuple[str, ...], used: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test by hand uses what the daemon's own tests use; who types another one means it."""
    asked: list[str] = []

    def run(target: test_module.StepTarget, *_: object) -> None:
        asked.append(target.rank_python)
        raise WrongUsageError("enough")

    site = tmp_path / "robust.yaml"
    site.write_text("nodetest: {python: /opt/torch/bin/python}\n")
    monkeypatch.setattr(test_module, "connect", lambda _: FakeSlurm())
    monkeypatch.setattr(test_module, "TestRun", run)
    CliRunner().invoke(cli, ["test", "-w", "n1", "--config", str(site), *words])
    assert asked == [used]
