"""`srobust nodewatch`: the root service of a node, in the foreground, for systemd or a person."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from slurm_robust.cli.teaching import lesson
from slurm_robust.config import file as config_file
from slurm_robust.config import site as configuration
from slurm_robust.core.model import Mode
from slurm_robust.marks.node_findings import NodeFinding

if TYPE_CHECKING:
    from slurm_robust.config.site import Config
    from slurm_robust.nodecheck.engine.choices import Choices
    from slurm_robust.nodecheck.engine.context import Context
    from slurm_robust.nodewatch.service import Show

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
    """Tell the jobs of this node what happens to it.

    What the kernel logs and a lost link or port are told within a second or two; what only a check finds, within 10 or
    30 s.

    It follows the kernel log, the links of network cards, RDMA ports and NVIDIA's driver, and runs the quick node
    checks every 10 or 30 s. What it finds goes to the file findings.jsonl in nodecheck.cache_dir (/run/slurm_robust),
    which supervised jobs read. Each finding says how urgent it is: now, if_repeated, at_next_checkpoint or note.

    Where a fault makes the node unfit, Slurm is told: a node without jobs is drained, if srobustd permits it; on a node
    with jobs that cannot go on, the fault is marked for srobustd. In mode observe it only says so.

    It reads robust.yaml again once that has changed (within a minute), or at a SIGHUP (systemctl reload). A file that
    cannot be used is said, and the settings of before hold.

    Run it as root: others may not read the kernel log. It changes nothing on the node, and opens no port.
    """
    from slurm_robust.nodecheck.engine import choices, registry  # noqa: PLC0415 (loaded for this command only)
    from slurm_robust.nodewatch import service  # noqa: PLC0415 (the same)
    from slurm_robust.nodewatch.once import look  # noqa: PLC0415 (the same)

    unusable = (configuration.ConfigError, registry.CheckError, choices.ConfigRejected)
    show = _show_json if as_json else _show
    try:
        settings = _Settings.read(config, node)
        if not once:
            _watch(config, node, settings, show, unusable)
            return
    except (*unusable, service.RunningError) as error:
        raise click.ClickException(str(error)) from None
    found = look(settings.chosen, settings.context, service.say_on_stderr)
    for finding in found:
        show(finding)
    if not found and not as_json:
        click.echo("Nothing is wrong.")


class _Settings(NamedTuple):
    """The settings of robust.yaml for this node, and the version of the file that they came from."""

    path: str
    identity: str
    site: Config
    chosen: Choices
    context: Context

    @classmethod
    def read(cls, config: str | None, node: str | None) -> _Settings:
        """Read them; raises what says that they cannot be used."""
        from slurm_robust.nodecheck.engine import choices, registry  # noqa: PLC0415 (as above)
        from slurm_robust.nodecheck.engine.context import node_name  # noqa: PLC0415 (the same)
        from slurm_robust.nodewatch.settings_file import identity_of  # noqa: PLC0415 (the same)

        found = config_file.find(config)
        path = str(found or config_file.DEFAULT_PATH)
        if found is not None:
            choices.distrust(path)
        identity = identity_of(path)
        site = configuration.load(config)
        chosen = choices.of(site)
        for name in chosen.options:
            registry.require(name)
        return cls(path, identity, site, chosen, chosen.context(node or node_name(), "periodic", os.environ))


def _watch(
    config: str | None, node: str | None, now: _Settings, show: Show, unusable: tuple[type[Exception], ...]
) -> None:
    """Watch until a signal ends it: one service after the other, each with other settings."""
    from slurm_robust.nodecheck.stages import gate  # noqa: PLC0415 (as above)
    from slurm_robust.nodewatch import service, slurm_reporter  # noqa: PLC0415 (the same)
    from slurm_robust.nodewatch.settings_file import SettingsFile  # noqa: PLC0415 (the same)

    say = service.say_on_stderr

    def reread() -> bool:
        nonlocal now
        try:
            new = _Settings.read(config, node)
        except unusable as error:
            say(f"the settings of before hold (mode {now.site.mode.value}): {error}")
            return False
        if new.site == now.site:
            say(f"no setting has changed (mode {now.site.mode.value})")
            return False
        now = new
        return True

    signal.pthread_sigmask(signal.SIG_BLOCK, service.HELD_BACK)
    renewed = True
    while renewed:
        lacking = slurm_reporter.lacking(now.site)
        if now.site.mode is Mode.ACT and lacking:
            say(lacking)

        def reporter(hung: str, kept: dict[str, Any], now: _Settings = now) -> slurm_reporter.SlurmReporter:
            return slurm_reporter.reporter(now.site, now.context.node, say, hung=hung, kept=kept)

        def tell(now: _Settings = now) -> str:
            return gate.tell_mode(now.context.node, now.site)

        may_tell = os.geteuid() == 0 and not lacking
        file = SettingsFile(now.path, now.identity, tell if may_tell else None)
        renewed = service.Service(now.chosen, now.context, say, show, reporter, settings_file=file).run(reread)


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
