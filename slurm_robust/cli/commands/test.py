"""`srobust test`: which node fails a test, now that the training stands still?"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from dataclasses import replace
from functools import partial
from typing import NoReturn

import click
from click.shell_completion import CompletionItem

from slurm_robust import config as site
from slurm_robust.cli import table
from slurm_robust.cli.teaching import lesson, not_running, slurm_words
from slurm_robust.model import EXIT_USAGE, JobRef
from slurm_robust.slurm.client import Node, SlurmClient
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.slurm.factory import connect
from slurm_robust.slurm.values import expand
from slurm_robust.stoptime import topology
from slurm_robust.stoptime.agent_step import StepTarget
from slurm_robust.stoptime.conclusion import FindingKind, TestName, TestReport
from slurm_robust.stoptime.run import LEAST_BUDGET_S, TestRun, TestRunError

_EXITS = {"passed": 0, "failed": 1, "undecided": 2}
_INTERRUPTED = 130
_ALL = ",".join(test.value for test in TestName)
_WORDS = {
    FindingKind.NODE: "node fails",
    FindingKind.LINK: "link fails",
    FindingKind.UNDECIDED: "undecided",
    FindingKind.UNTESTED: "not tested",
}


class _UsageError(click.UsageError):
    exit_code = EXIT_USAGE


class _Command(click.Command):
    """Wrong usage has an exit code of its own: 2, which click takes, means that the tests could not tell."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            raise _UsageError(error.message, error.ctx) from None


def _complete(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of tests, also behind a comma."""
    listed, comma, begun = incomplete.rpartition(",")
    return [CompletionItem(f"{listed}{comma}{test.value}") for test in TestName if test.value.startswith(begun)]


def _tests(ctx: click.Context, _: click.Parameter, value: str) -> tuple[TestName, ...]:
    names = [name.strip() for name in value.split(",") if name.strip()]
    wrong = [name for name in names if name not in {test.value for test in TestName}]
    if wrong or not names:
        raise _UsageError(f"--tests: {', '.join(wrong) or 'no test'}: expected some of {_ALL}", ctx)
    return tuple(TestName(name) for name in dict.fromkeys(names))


@click.command(
    "test",
    cls=_Command,
    epilog=lesson(
        [
            ("srobust test --job 1234", "all tests on the nodes of job 1234"),
            ("srobust test --job 1234 --tests pairs", "only pairs of nodes"),
            ("srobust test -w n[1-4] --budget 60", "nodes without a job, in an allocation of their own"),
            ("srobust test --job 1234 --python ~/env/bin/python", "with the PyTorch of the training"),
        ],
        [
            (0, "every test passed on every node"),
            (1, "a node or a link fails; the evidence is printed"),
            (2, "the tests could not tell; what is open is printed, and no node is blamed for it"),
            (EXIT_USAGE, "wrong usage or configuration"),
            (_INTERRUPTED, "ended by Ctrl-C; nothing is left running"),
        ],
    ),
)
@click.option("--job", "job_id", metavar="ID", help="Test the nodes of this running job, as a step of it.")
@click.option(
    "-w", "--nodelist", metavar="NODES", help="Test these nodes, n[1-4]; with --job: only these of its nodes."
)
@click.option(
    "--tests", default=_ALL, show_default=True, metavar="A,B", callback=_tests, shell_complete=_complete,
    help="Which tests.",
)  # fmt: skip
@click.option("--budget", "budget_s", default=120.0, show_default=True, help="Seconds for all tests together.")
@click.option("--python", metavar="PATH", help="The Python on the nodes that has PyTorch (default: srobust's own).")
@click.option("--reservation", metavar="NAME", help="Without --job: the reservation that the nodes are in.")
@click.option("--json", "as_json", is_flag=True, help="The verdict as one JSON object.")
@click.option("--config", "config_path", type=click.Path(), help="robust.yaml to use.")
def command(
    *,
    job_id: str | None,
    nodelist: str | None,
    tests: tuple[TestName, ...],
    budget_s: float,
    python: str | None,
    reservation: str | None,
    as_json: bool,
    config_path: str | None,
) -> None:
    """Find out which node or link fails, where stacks and logs do not tell. The training must stand still meanwhile.

    \b
    in-node    the full check of each node (srobust check), with known answers on each GPU
    pairs      all-gather and all-reduce between two nodes: are the data right, and is it fast?
               Members of pairs that fail meet proven nodes, so that a broken link is told from a broken node.
    alignment  one training step of a small model on each device: do all of a kind come to the same bits?

    The tests run as one Slurm step under your rights, and end with it. GPUs that another process uses are not tested.
    """  # noqa: D301 (click's own mark for text that is not to be wrapped)
    if job_id is None and nodelist is None:
        raise _UsageError("say what to test: --job ID, or -w NODES")
    if job_id is not None and reservation is not None:
        raise _UsageError("--reservation is for nodes without a job: leave out --job")
    if budget_s < LEAST_BUDGET_S:
        raise _UsageError(
            f"--budget {budget_s:g} is too small: starting the agents and one test take {LEAST_BUDGET_S:g} s"
        )
    try:
        client = connect(site.load(config_path).slurm)
        target = _job_target(client, job_id, nodelist) if job_id else _node_target(client, nodelist or "", reservation)
    except site.ConfigError as error:
        raise _UsageError(str(error)) from None
    except SlurmError as error:
        _inconclusive(slurm_words(error))
    target = replace(target, rank_python=python or sys.executable)
    switches = topology.read(os.environ.get("SLURM_CONF", "/etc/slurm/slurm.conf"))
    run = TestRun(target, tests, budget_s, partial(click.echo, err=True), switches)
    report = _carried_out(run, client, job_id)
    if as_json:
        click.echo(json.dumps({"job": job_id or "", **report.to_json()}, ensure_ascii=False))
    else:
        _print(report)
    sys.exit(_EXITS[report.verdict])


def _carried_out(run: TestRun, client: SlurmClient, job_id: str | None) -> TestReport:
    """Run the tests; whatever ends them, the step has ended afterwards."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        report = asyncio.run(run.run())
    except TestRunError as error:
        _inconclusive(str(error) if job_id is None else _ended(client, job_id) or str(error))
    except KeyboardInterrupt:
        click.echo("srobust test: ended by a signal; nothing is left running on the nodes", err=True)
        sys.exit(_INTERRUPTED)
    finally:
        if run.left_step:
            _end_step(client, run.left_step, own=job_id is None)
    if run.step_ended and job_id is not None and (sentence := _ended(client, job_id)):
        return replace(report, ended_early=sentence)
    return report


def _inconclusive(message: str) -> NoReturn:
    click.echo(f"srobust test: {message}", err=True)
    sys.exit(_EXITS["undecided"])


def _end_step(client: SlurmClient, step: str, *, own: bool) -> None:
    """Have Slurm end what a node that does not answer has left of the step; with `own`, the allocation too."""
    job, _, number = step.partition(".")
    try:
        if own:
            client.cancel(JobRef.parse(job))
        else:
            client.signal(JobRef.parse(job), "KILL", number)
    except (SlurmError, ValueError) as error:
        click.echo(f"srobust test: step {step} may still be there; see: squeue -s -j {job} ({error})", err=True)


def _job_target(client: SlurmClient, job_id: str, nodelist: str | None) -> StepTarget:
    try:
        ref = JobRef.parse(job_id)
    except ValueError as error:
        raise _UsageError(str(error)) from None
    job = client.job(ref)
    if job is None or job.state != "RUNNING":
        _inconclusive(not_running(job_id, job.state if job else None))
    wanted = expand(nodelist) if nodelist else job.nodes
    foreign = [node for node in wanted if node not in job.nodes]
    if foreign:
        raise _UsageError(f"job {job_id} does not run on {', '.join(foreign)}; it runs on {', '.join(job.nodes)}")
    return StepTarget(wanted, job.ref.job_id)


def _node_target(client: SlurmClient, nodelist: str, reservation: str | None) -> StepTarget:
    known = {node.name: node for node in client.nodes()}
    wanted = expand(nodelist)
    unknown = [name for name in wanted if name not in known]
    if unknown or not wanted:
        raise _UsageError(f"-w {nodelist}: Slurm knows no node {', '.join(unknown)}")
    out = [f"{name} ({known[name].reason or known[name].state.lower()})" for name in wanted if not known[name].usable]
    if out:
        _inconclusive(f"Slurm starts nothing on {', '.join(out)}; leave it out, or see: sinfo -R")
    return StepTarget(wanted, gres=_gres([known[name] for name in wanted]), reservation=reservation or "")


def _gres(nodes: list[Node]) -> str:
    """As many GPUs as each of the nodes has; empty where one has none."""
    counts = [sum(int(n) for n in re.findall(r"(?:^|,)gpu(?::[^:,()]+)?:(\d+)", node.gres)) for node in nodes]
    return f"gpu:{min(counts)}" if min(counts) else ""


def _ended(client: SlurmClient, job_id: str) -> str:
    """That the job has ended, as a sentence; empty where it runs."""
    try:
        job = client.job(JobRef.parse(job_id))
    except SlurmError as error:
        return f"the step ended, and Slurm does not say why: {slurm_words(error)}"
    if job is not None and job.state == "RUNNING":
        return ""
    return f"job {job_id} ended during the tests ({job.state if job else 'no longer known to Slurm'})"


def _print(report: TestReport) -> None:
    subject = {
        "passed": f"passed: {', '.join(test.value for test in report.tests)} on {len(report.nodes)} nodes",
        "failed": f"failed: {', '.join(report.failed_nodes) or 'a link, no node'}",
        "undecided": "undecided: no node or link is known to fail",
    }
    table.sentence(subject[report.verdict])
    if report.ended_early:
        table.paragraph("", report.ended_early, label_wide=0)
    rows = [(f.test.value, _WORDS[f.kind], ", ".join(f.nodes), f.reason) for f in report.findings]
    if rows:
        click.echo("\n".join(table.render(("test", "what", "nodes", "evidence"), rows, columns_wide=table.width())))
    if report.bandwidth:
        rates = ", ".join(f"{name} {rate:.3g} GB/s" for name, rate in report.bandwidth.items())
        table.paragraph("bandwidth", f"{rates} (median of the pairs)")
    times = ", ".join(f"{stage.name} {stage.took_s:.1f} s" for stage in report.stages)
    table.paragraph("times", times)
