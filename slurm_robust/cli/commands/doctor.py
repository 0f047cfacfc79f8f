"""`srobust doctor`: is this site set up so that jobs can be saved?"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slurm_robust.cli.state import load_config, print_json
from slurm_robust.cli.teaching import lesson

if TYPE_CHECKING:
    from slurm_robust.config.site import Config
    from slurm_robust.doctor.advice import Advice
    from slurm_robust.slurm.commands import CommandClient
    from slurm_robust.slurm.in_use import BackEnd

EXIT_FINE, EXIT_WRONG, EXIT_USAGE, EXIT_NO_SLURM = 0, 1, 2, 3
_EXAMPLES = (
    ("srobust doctor", "on the controller: slurm.conf; on a node: the scripts and py-spy"),
    ("srobust doctor --all", "also the points that are well"),
)
_CODES = (
    (EXIT_FINE, "nothing is wrong"),
    (EXIT_WRONG, "something is wrong; each finding comes with the line that fixes it"),
    (EXIT_USAGE, "wrong usage or configuration"),
    (EXIT_NO_SLURM, "Slurm did not answer"),
)
_LEVELS = ("wrong", "unknown", "advice", "ok")


@click.command("doctor", epilog=lesson(_EXAMPLES, _CODES))
@click.option("--config", "path", type=click.Path(dir_okay=False), help="robust.yaml to use (default: as the daemon).")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option("--all", "everything", is_flag=True, help="Also show the points that are well.")
def command(path: str | None, as_json: bool, everything: bool) -> None:
    """Is this site set up so that jobs can be saved? Each finding has the line that fixes it.

    It changes nothing.
    """
    from slurm_robust.slurm.errors import SlurmError  # noqa: PLC0415 (loaded for this command only)
    from slurm_robust.slurm.factory import connect  # noqa: PLC0415 (the same)

    try:
        config = load_config(path)
    except click.ClickException as error:
        error.show()
        sys.exit(EXIT_USAGE)
    problem = ""
    said: dict[str, str] = {}
    client = connect(config.slurm)
    try:
        said = client.settings()
    except SlurmError as error:
        problem = str(error)
    about = _about(client, tried=not problem)
    found = _findings(config, path, said, client, about)
    found.sort(key=lambda advice: _LEVELS.index(advice.level.value))
    wrong = any(advice.level.value == "wrong" for advice in found)
    if as_json:
        shown = [{"level": a.level.value, "about": a.about, "sentence": a.sentence, "fix": a.fix} for a in found]
        detours = [{"call": d.call, "when": d.when, "why": d.why} for d in (*about.lacking, *about.by_command)]
        versions = {"name": about.name, "version": about.version, "slurm_version": about.slurm}
        chosen = {**versions, "unfit": about.problem, "by_command": detours}
        print_json({"slurm": not problem, "problem": problem, "backend": chosen, "findings": shown})
    else:
        _show_backend(about, everything=everything)
        for advice in found:
            if everything or advice.level.value != "ok":
                click.echo(f"{advice.level.value:8} {advice.about}: {advice.sentence}")
                if advice.fix:
                    click.echo(f"{'':8} → {advice.fix}")
        well = sum(1 for advice in found if advice.level.value == "ok")
        click.echo(f"{well} of {len(found)} findings are ok{'' if everything else ' (shown with --all)'}")
        if problem:
            click.echo(f"slurm.conf was not checked: {problem}", err=True)
    sys.exit(EXIT_NO_SLURM if problem else EXIT_WRONG if wrong else EXIT_FINE)


def _findings(
    config: Config, path: str | None, said: dict[str, str], client: CommandClient, about: BackEnd
) -> list[Advice]:
    """Return all findings; `said` is slurm.conf as Slurm runs it, empty if it was not asked."""
    from slurm_robust.config import file as config_file  # noqa: PLC0415 (the same)
    from slurm_robust.config import site as configuration  # noqa: PLC0415 (loaded for this command only)
    from slurm_robust.doctor import backend, gpus, machine, plugin, settings, site, targets  # noqa: PLC0415 (the same)
    from slurm_robust.doctor.advice import Advice, Severity  # noqa: PLC0415 (the same)

    # First: a node whose GPUs cannot be seen is not checked, even if all else is well.
    found = gpus.check(config.nodetest)
    found += settings.judge(said, config) if said else []
    found += [Advice(Severity.ADVICE, "robust.yaml", text) for text in configuration.old_keys(path)]
    found += backend.check(about.name, about.version, about.problem, {d.call: d.why for d in about.lacking})
    nodes = _nodes(client) if said else {}
    found += _own_jobs(said, config, nodes) if said else []
    found += plugin.check(said)
    used = config_file.find(path)
    found += machine.check(said, used)
    own_name = os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]
    found += site.check(config, used, own_name if own_name in nodes or not nodes else "")
    if nodes:
        found += site.partitions(config, {name for names in nodes.values() for name in names})
    if state := _state(config):
        # Only the daemon's machine has it.
        found += site.daemon(config, state, time.time())
        found += targets.check(config, state)
    return found


def _nodes(client: CommandClient) -> dict[str, tuple[str, ...]]:
    """Return the partitions of each node, by its name; empty if Slurm does not say."""
    from slurm_robust.slurm.errors import SlurmError  # noqa: PLC0415 (loaded for this command only)

    try:
        return {node.name: node.partitions for node in client.nodes()}
    except SlurmError:
        return {}


def _state(config: Config) -> dict[str, Any]:
    """Return the snapshot of a daemon on this machine; empty if no snapshot can be read."""
    try:
        state = json.loads((Path(config.daemon.state_dir) / "state.json").read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def _about(client: CommandClient, *, tried: bool) -> BackEnd:
    """Return the back end; if Slurm answers, its reads are tried first, so that a failing read is known."""
    from slurm_robust.slurm.errors import SlurmError  # noqa: PLC0415 (loaded for this command only)

    if tried and client.about().name != "commands":
        for read in (client.cluster_name, client.nodes, client.jobs, client.reservations):
            with contextlib.suppress(SlurmError):
                read()
    return client.about()


def _own_jobs(said: dict[str, str], config: Config, nodes: dict[str, tuple[str, ...]]) -> list[Advice]:
    """Return whether the daemon's own jobs may start, as its user: the owner of its folder, or else the caller."""
    from slurm_robust.doctor import own_jobs  # noqa: PLC0415 (loaded for this command only)
    from slurm_robust.doctor.advice import Advice, Severity  # noqa: PLC0415 (the same)
    from slurm_robust.slurm.admission import AdmissionClient  # noqa: PLC0415 (the same)
    from slurm_robust.slurm.errors import SlurmError  # noqa: PLC0415 (the same)

    chosen, client, guessed = config.own_jobs, AdmissionClient(config.slurm), False
    try:
        asks = pwd.getpwuid(os.geteuid()).pw_name
        try:
            user = Path(config.daemon.state_dir).owner()
        except (OSError, KeyError):
            guessed = True  # a node, or the daemon has not begun yet: it may have a user of its own
            user = asks if os.geteuid() == 0 else "root"
        if asks not in ("root", user):
            who = f"{asks} cannot try the jobs of {user}, the daemon's user"
            return [Advice(Severity.UNKNOWN, own_jobs.ABOUT, who, "sudo srobust doctor  # or as that user")]
        # Any node may become a suspect, and is checked in one of its partitions.
        wanted = {chosen.partition_for(names) for names in nodes.values()}
        partitions = [p for p in client.partitions() if p.name in wanted]
        known = client.associations(user) if own_jobs.enforced(said) else None
        options = [f"--{k}={v}" for k, v in (("account", chosen.account), ("qos", chosen.qos)) if v]
        options += ["--nodes=1", "--exclusive", "--time=1", "--output=/dev/null", "--chdir=/"]
        tried = {p.name: client.refusal([f"--partition={p.name}", *options], user) for p in partitions}
    except (SlurmError, KeyError) as error:
        return [Advice(Severity.UNKNOWN, own_jobs.ABOUT, f"the daemon's own jobs could not be tried: {error}")]
    found = own_jobs.judge(chosen, user, partitions, known, tried, standby=config.standby.partitions)
    return [own_jobs.on_condition(advice, user) for advice in found] if guessed else found


def _show_backend(about: BackEnd, *, everything: bool) -> None:
    used = about.name if not about.problem else f"commands, since {about.name} does not fit"
    click.echo(f"back end: {used} {about.version}".rstrip() + (f", Slurm {about.slurm}" if about.slurm else ""))
    if about.name == "commands" or about.problem:
        return
    detours = (*about.lacking, *about.by_command)
    if everything:
        for detour in detours:
            click.echo(f"  by command: {detour.call}{detour.when and ' where ' + detour.when}: {detour.why}")
    else:
        click.echo(
            f"  by Slurm's commands, some only in part (--all says why): {', '.join({d.call: 0 for d in detours})}"
        )
