"""`srobust test`: which node fails a test, now that the training stands still?"""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import signal
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from slurm_robust.cli import table
from slurm_robust.cli.teaching import lesson, not_running, own_job, slurm_words, why_waits
from slurm_robust.cli.undecided import EXITS, INTERRUPTED, TestCommand, UndecidedError, WrongUsageError
from slurm_robust.config import site
from slurm_robust.core.model import EXIT_USAGE, JobRef, TestName
from slurm_robust.localize.layout import LayoutError
from slurm_robust.localize.layout import parse as parse_layout
from slurm_robust.marks import claim
from slurm_robust.policy.cluster.tested_pairs import PairReport
from slurm_robust.slurm import topology
from slurm_robust.slurm.client import Node, SlurmClient
from slurm_robust.slurm.errors import SlurmError, SlurmParseError
from slurm_robust.slurm.factory import connect
from slurm_robust.slurm.values import expand
from slurm_robust.stoptime.agent_step import StepTarget
from slurm_robust.stoptime.conclusion import FindingKind, TestReport, count_of
from slurm_robust.stoptime.replay_run import SAME, ReplaySpec, typed_command
from slurm_robust.stoptime.run import LEAST_BUDGET_S, TestRun, TestRunError, TestSettings, least_bandwidths

_ELSEWHERE = "; type it in salloc, or with --job ID for a running job's nodes, --reservation NAME for reserved ones"
Sizes = dict[str, int]
_DEFAULT = ",".join(test.value for test in TestName if test is not TestName.REPLAY)
_ALL = ",".join(test.value for test in TestName)
_WORDS = {
    FindingKind.NODE: "node fails",
    FindingKind.LINK: "link fails",
    FindingKind.UNDECIDED: "undecided",
    FindingKind.UNTESTED: "not tested",
}


def _complete(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of tests, also behind a comma."""
    listed, comma, begun = incomplete.rpartition(",")
    return [CompletionItem(f"{listed}{comma}{test.value}") for test in TestName if test.value.startswith(begun)]


def _tests(ctx: click.Context, _: click.Parameter, value: str) -> tuple[TestName, ...]:
    names = [name.strip() for name in value.split(",") if name.strip()]
    wrong = [name for name in names if name not in {test.value for test in TestName}]
    if wrong or not names:
        raise WrongUsageError(f"--tests: {', '.join(wrong) or 'no test'}: expected some of {_ALL}", ctx)
    return tuple(TestName(name) for name in dict.fromkeys(names))


@click.command(
    "test",
    cls=TestCommand,
    epilog=lesson(
        [
            ("srobust test --job 1234", "all tests on the nodes of job 1234"),
            ("srobust test", "the same in salloc or a batch script, of itself"),
            ("srobust test --job 1234 --tests pairs", "only pairs of nodes"),
            ("srobust test -w n[1-4] --budget 60", "nodes without a job, in an own allocation"),
            ("srobust test --job 1234 --python ~/env/bin/python", "with the PyTorch of the training"),
            ("srobust test --job 1234 --tests replay --replay-nodes 4", "groups of four nodes replay a model"),
        ],
        [
            (0, "every test passed on every node"),
            (1, "a node or a link fails; the evidence is printed"),
            (2, "the tests could not tell; what is open is printed, and no node is blamed for it"),
            (EXIT_USAGE, "wrong usage or configuration"),
            (INTERRUPTED, "ended by Ctrl-C; nothing is left running"),
        ],
    ),
)
@click.option(
    "--job", "job_id", metavar="ID", help="Test this running job's nodes, as a step (default: $SLURM_JOB_ID)."
)
@click.option(
    "-w", "--nodelist", metavar="NODES", help="Test these nodes, n[1-4]; with --job: only these of its nodes."
)
@click.option(
    "--tests", default=_DEFAULT, show_default=True, metavar="A,B", callback=_tests, shell_complete=_complete,
    help=f"Which tests: of {_ALL}.",
)  # fmt: skip
@click.option("--budget", "budget_s", default=120.0, show_default=True, help="Seconds for all tests together.")
@click.option("--eud", is_flag=True, help="NVIDIA's Extended Utility Diagnostics too; give --budget 2400.")
@click.option("--python", metavar="PATH", help="The nodes' Python with PyTorch (default: nodetest.python, or our own).")
@click.option("--replay", metavar="CMD", help="What replay runs in each group (default: a reference model).")
@click.option("--replay-nodes", type=click.IntRange(1, 4096), metavar="M", help="Nodes of one group: one replica's.")
@click.option(
    "--replay-tasks", type=click.IntRange(1, 1024), metavar="N", help="Ranks of CMD on each node (default: 1)."
)
@click.option("--layout", metavar="SIZES", help="The job's, tp=2,pp=4: for steps of alignment, and replay's groups.")
@click.option("--reservation", metavar="NAME", help="Without --job: the reservation that the nodes are in.")
@click.option("--json", "as_json", is_flag=True, help="The verdict as one JSON object.")
@click.option("--tell-slurm", is_flag=True, help="With --job: write the verdict into the Comment of that job of yours.")
@click.option("--config", "config_path", type=click.Path(), help="robust.yaml to use.")
def command(
    *,
    job_id: str | None,
    nodelist: str | None,
    tests: tuple[TestName, ...],
    budget_s: float,
    eud: bool,
    python: str | None,
    replay: str | None,
    replay_nodes: int | None,
    replay_tasks: int | None,
    layout: str | None,
    reservation: str | None,
    as_json: bool,
    tell_slurm: bool,
    config_path: str | None,
) -> None:
    """Find out which node or link fails, where stacks and logs do not tell. The training must stand still meanwhile.

    \b
    in-node    the full check of each node, and known answers, copies and an all-to-all on its GPUs
    pairs      all-gather and all-reduce between two nodes: are the data right, and is it fast?
               Members of pairs that fail meet proven nodes, so that a broken link is told from a broken node.
    alignment  one training step of a small model on each device: do all of a kind come to the same bits?
               With --layout: and in steps between two nodes, in the shape of the job?
    replay     the training, smaller, in groups of nodes, divided in two ways: which node is in both
               that fail? Only where --tests names it. CMD must not save where SROBUST_REPLAY is 1.

    The tests run as one Slurm step under your rights, and end with it. GPUs that another process uses are not tested.
    """  # noqa: D301 (click's own mark for text that is not to be wrapped)
    job_id = own_job() if {job_id, nodelist, reservation} == {None} else job_id
    if job_id is None and nodelist is None:
        raise WrongUsageError("say what to test: --job ID, or -w NODES")
    if job_id is not None and reservation is not None:
        raise WrongUsageError("--reservation is for nodes without a job: leave out --job")
    if tell_slurm and job_id is None:
        raise WrongUsageError("--tell-slurm needs the job in whose Comment the verdict is written: --job ID")
    if not math.isfinite(budget_s):
        raise WrongUsageError(f"--budget {budget_s:g}: expected a number of seconds")
    if budget_s < LEAST_BUDGET_S:
        raise WrongUsageError(
            f"--budget {budget_s:g} is too small: starting the agents and one test take {LEAST_BUDGET_S:g} s"
        )
    wanted = _wanted(nodelist)
    sizes = _checked_sizes(tests, replay, (replay_nodes, replay_tasks), layout or "")
    try:
        config = site.load(config_path)
        client = connect(config.slurm)
        alone = (client, wanted, reservation, config.own_jobs)
        target = _job_target(client, job_id, wanted) if job_id else _node_target(*alone)
        spec: ReplaySpec | None = None
        if TestName.REPLAY in tests:
            there = [node for node in client.nodes() if node.name in target.nodes]
            group_nodes = replay_nodes or _nodes_of_layout(sizes, there)
            spec = ReplaySpec(
                group_nodes,
                replay_tasks or (1 if replay else 0),
                typed_command(replay) if replay else (),
                sizes.get("tp", 0),
                folder=str(Path.cwd()),
            )
    except site.ConfigError as error:
        raise WrongUsageError(str(error)) from None
    except SlurmError as error:
        raise UndecidedError(slurm_words(error)) from None
    target = replace(target, rank_python=python or config.nodetest.python or sys.executable)
    settings = TestSettings(budget_s, topology.read(""), least_bandwidths(config.nodecheck.options), spec, eud, sizes)
    run = TestRun(target, tests, settings, partial(click.echo, err=True), partial(why_waits, client))
    report = _carried_out(run, client, job_id)
    if tell_slurm and job_id is not None:
        _tell_slurm(client, job_id, report)
    if as_json:
        click.echo(json.dumps({"job": job_id or "", **report.to_json()}))
    else:
        _print(report)
    sys.exit(EXITS[report.verdict])


def _wanted(nodelist: str | None) -> tuple[str, ...]:
    """Return the nodes of `-w`; none if it was not typed."""
    if nodelist is None:
        return ()
    try:
        wanted = expand(nodelist)
    except SlurmParseError as error:
        raise WrongUsageError(f"-w {nodelist}: {slurm_words(error)}") from None
    if not wanted:
        raise WrongUsageError("-w names no node")
    return wanted


def _checked_sizes(
    tests: tuple[TestName, ...], replay: str | None, given: tuple[int | None, ...], layout: str
) -> Sizes:
    """Return the parallel sizes of `--layout`; refuse impossible sizes."""
    if TestName.REPLAY not in tests and (replay is not None or any(given)):
        raise WrongUsageError("--replay and its sizes are for the test replay: add --tests replay")
    if layout and {TestName.REPLAY, TestName.ALIGNMENT}.isdisjoint(tests):
        raise WrongUsageError("--layout is for the tests alignment and replay: add --tests alignment")
    if replay == SAME:
        raise WrongUsageError(
            "--replay same: only srobust run --robust-replay=same knows the command of the job's step; type the command"
        )
    if replay is not None and not replay.strip():
        raise WrongUsageError("--replay: the command is empty")
    try:
        return parse_layout(layout)[0] if layout else {}
    except LayoutError as error:
        raise WrongUsageError(f"--layout: {error}") from None


def _nodes_of_layout(sizes: Sizes, nodes: list[Node]) -> int:
    """Return how many nodes one replica of the model needs."""
    if not sizes:
        raise WrongUsageError("replay: say how many nodes one replica needs: --replay-nodes M, or --layout tp=2,pp=4")
    gpus = _gpus(nodes)
    if not gpus:
        raise WrongUsageError(
            "replay: Slurm knows no GPUs of these nodes; say how many nodes one replica needs: --replay-nodes M"
        )
    return math.ceil(sizes.get("tp", 1) * sizes.get("pp", 1) * sizes.get("cp", 1) / gpus)


def _carried_out(run: TestRun, client: SlurmClient, job_id: str | None) -> TestReport:
    """Run the tests. The step has ended when this returns, however the tests ended."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        report = asyncio.run(run.run())
    except TestRunError as error:
        why = f"{error}{_ELSEWHERE}" if job_id is None else _ended(client, job_id) or str(error)
        raise UndecidedError(why) from None
    except KeyboardInterrupt:
        click.echo("srobust test: ended by a signal; nothing is left running on the nodes", err=True)
        sys.exit(INTERRUPTED)
    finally:
        for step in run.left_replay:
            _end_step(client, step, own=False)
        if run.left_step:
            _end_step(client, run.left_step, own=job_id is None)
    if run.step_ended and job_id is not None and (sentence := _ended(client, job_id)):
        return replace(report, ended_early=sentence)
    return report


def _tell_slurm(client: SlurmClient, job_id: str, report: TestReport) -> None:
    """Write the verdict into the job's Comment for the daemon, which reads no files of nodes.

    The exit code has it, too.
    """
    ref = JobRef.parse(job_id)
    try:
        job = client.job(ref)
        if job is not None and claim.split(job.comment)[1] is not None:
            why = f"job {job_id} is supervised, and its Comment is its supervisor's"
            click.echo(f"srobust test: the verdict was not written: {why}. Leave out --tell-slurm", err=True)
            return
        client.update_job(ref, comment=PairReport.of(report.to_json()).comment())
    except SlurmError as error:
        click.echo(f"srobust test: the job's Comment could not be written: {slurm_words(error)}", err=True)


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


def _job_target(client: SlurmClient, job_id: str, wanted: tuple[str, ...]) -> StepTarget:
    try:
        ref = JobRef.parse(job_id)
    except ValueError as error:
        raise WrongUsageError(str(error)) from None
    job = client.job(ref)
    if job is None or job.state != "RUNNING":
        raise UndecidedError(not_running(job_id, job.state if job else None))
    wanted = wanted or job.nodes
    foreign = [node for node in wanted if node not in job.nodes]
    if foreign:
        raise WrongUsageError(f"job {job_id} does not run on {', '.join(foreign)}; it runs on {', '.join(job.nodes)}")
    return StepTarget(wanted, job.ref.job_id)


def _node_target(
    client: SlurmClient, wanted: tuple[str, ...], reservation: str | None, own_jobs: site.OwnJobsConfig
) -> StepTarget:
    known = {node.name: node for node in client.nodes()}
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise WrongUsageError(f"-w: Slurm knows no node {', '.join(unknown)}")
    if out := [f"{n} ({known[n].reason or known[n].state.lower()})" for n in wanted if not known[n].usable]:
        raise UndecidedError(f"Slurm starts nothing on {', '.join(out)}; leave it out, or see: sinfo -R")
    nodes = [known[name] for name in wanted]
    shared = [name for name in nodes[0].partitions if all(name in node.partitions for node in nodes)]
    # A test of root's is one of the site's own jobs: root need not have an account that may run there.
    admission = tuple(own_jobs.options(shared)) if os.geteuid() == 0 else ()
    return StepTarget(wanted, gres=_gres(nodes), reservation=reservation or "", admission=admission)


def _gpus(nodes: list[Node]) -> int:
    """Return the number of GPUs that each of the nodes has at least."""
    found = [sum(int(n) for n in re.findall(r"(?:^|,)gpu(?::[^:,()]+)?:(\d+)", node.gres)) for node in nodes]
    return min(found, default=0)


def _gres(nodes: list[Node]) -> str:
    """Return what to ask for on each node to get its GPUs; empty if a node has none."""
    return f"gpu:{gpus}" if (gpus := _gpus(nodes)) else ""


def _ended(client: SlurmClient, job_id: str) -> str:
    """Return a sentence that says that the job has ended; empty if it runs."""
    try:
        job = client.job(JobRef.parse(job_id))
    except SlurmError as error:
        return f"the step ended, and Slurm does not say why: {slurm_words(error)}"
    if job is not None and job.state == "RUNNING":
        return ""
    return f"job {job_id} ended during the tests ({job.state if job else 'no longer known to Slurm'})"


def _print(report: TestReport) -> None:
    subject = {
        "passed": f"passed: {', '.join(test.value for test in report.tests)} on {count_of(report.nodes)}",
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
    for note in report.notes:
        table.paragraph("note", note)
    table.paragraph("times", ", ".join(f"{stage.name} {stage.took_s:.1f} s" for stage in report.stages))
