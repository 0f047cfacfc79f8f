"""`srobust nodewatch`: the root service of a node, in the foreground, for systemd or a person."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import click

from slurm_robust import config as configuration
from slurm_robust import config_file
from slurm_robust.cli.teaching import lesson
from slurm_robust.model import Mode
from slurm_robust.node_findings import NodeFinding

_EXAMPLES = (
    ("srobust nodewatch --once", "what it finds on this node now, for people"),
    ("srobust nodewatch", "as the systemd unit starts it: findings go to nodecheck.cache_dir"),
    ("srobust nodewatch --json", "the same, and each finding as a JSON line on stdout"),
)
_EXITS = (
    (0, "ended by SIGTERM or Ctrl-C; with --once: looked, whatever was found"),
    (1, "cannot start: wrong configuration, or another one watches this node; the message says which"),
    (2, "wrong usage"),
)


@click.command(name="nodewatch", epilog=lesson(_EXAMPLES, _EXITS))
@click.option(
    "--config", type=click.Path(dir_okay=False), help="robust.yaml to use (default: $SROBUST_CONFIG, then /etc)."
)
@click.option("--node", metavar="NAME", help="Slurm's name of this node, for %n in robust.yaml (default: the host's).")
@click.option("--once", is_flag=True, help="Print what it finds now, and end; nothing is written.")
@click.option("--json", "as_json", is_flag=True, help="Print each finding as one JSON object a line.")
def command(config: str | None, *, node: str | None, once: bool, as_json: bool) -> None:
    """Tell the jobs of this node within a second or two what happens to it.

    It follows the kernel log, the links of network cards, RDMA ports and NVIDIA's driver, and runs the quick node
    checks every 10 or 30 s. What it finds goes to the file findings.jsonl in nodecheck.cache_dir (/run/slurm_robust),
    which supervised jobs read. Each finding says how urgent it is: now, if_repeated, at_next_checkpoint or note.

    Where a fault makes the node unfit, Slurm is told: a node without jobs is drained, if srobustd permits it; on a node
    with jobs that cannot go on, the fault is marked for srobustd. In mode observe it only says so.

    Run it as root: others may not read the kernel log. It changes nothing on the node, and opens no port.
    """
    from slurm_robust.nodecheck.engine import choices, registry  # noqa: PLC0415 (loaded for this command only)
    from slurm_robust.nodecheck.engine.context import node_name  # noqa: PLC0415 (the same)
    from slurm_robust.nodewatch import service, slurm_reporter  # noqa: PLC0415 (the same)
    from slurm_robust.nodewatch.once import look  # noqa: PLC0415 (the same)

    try:
        path = config_file.find(config)
        if path is not None:
            choices.distrust(str(path))
        site = configuration.load(config)
        chosen = choices.of(site)
        for name in chosen.options:
            registry.require(name)
        context = chosen.context(node or node_name(), "periodic", os.environ)
        show = _show_json if as_json else _show
        if once:
            found = look(chosen, context, service.say_on_stderr)
            for finding in found:
                show(finding)
            if not found and not as_json:
                click.echo("Nothing is wrong.")
            return
        if site.mode is Mode.ACT and (why := slurm_reporter.lacking(site)):
            service.say_on_stderr(why)

        def reporter(hung: str, kept: dict[str, Any]) -> slurm_reporter.SlurmReporter:
            return slurm_reporter.reporter(site, context.node, service.say_on_stderr, hung=hung, kept=kept)

        service.Service(chosen, context, service.say_on_stderr, show, reporter).run()
    except (configuration.ConfigError, registry.CheckError, choices.ConfigRejected, service.RunningError) as error:
        raise click.ClickException(str(error)) from None


def _show(finding: NodeFinding) -> None:
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(finding.at_s))
    where = f" GPU {','.join(map(str, finding.gpus))}" if finding.gpus else f" {finding.port}" if finding.port else ""
    _print(f"{when} {finding.urgency}{where} {finding.kind}: {finding.text}")


def _show_json(finding: NodeFinding) -> None:
    _print(json.dumps(finding._asdict()))


def _print(line: str) -> None:
    """Print a line; a reader that has gone is no reason to watch no more."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115 (for the rest of this process)
