"""`srobust devcluster`: a private, real, multi-node Slurm on this machine."""

from __future__ import annotations

import json
import os
import shlex
import signal
from pathlib import Path
from typing import Any

import click

from slurm_robust.cli.teaching import lesson
from slurm_robust.devcluster.cluster import CommandError, DevCluster, DevClusterError, Spec

_UP = ("srobust devcluster up --daemon --standby 1", "six nodes of eight fake GPUs, with the control daemon")
_ENV = ('eval "$(srobust devcluster env)"', "this shell uses it from now on: sinfo, srun, srobust …")
_TRY = ("srun --immediate=10 -N2 --gres=gpu:8 env", "runs on two of its nodes")
_STATUS = ("srobust devcluster status", "nodes, daemons, where the logs are")
_DOWN = ("srobust devcluster down", "end it and leave nothing behind")
_EXITS = ((0, "done"), (1, "failed; the message says why and what to type"), (2, "wrong usage"))


def default_directory() -> Path:
    """Return the folder of the cluster that the command line uses."""
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(runtime) / "srobust-devcluster"
    # Used only after its owner was checked.
    return Path(f"/tmp/srobust-devcluster-{os.getuid()}")  # noqa: S108 (one known place, so that `down` finds it)


def _state(cluster: DevCluster) -> dict[str, Any]:
    """Return the object that `up --json` and `status --json` print."""
    now = cluster.record
    live = now.live()
    shown = cluster.run(["sinfo", "-h", "-N", "-o", "%N|%T|%E"], check=False, timeout_s=15)
    rows = [line.split("|", 2) for line in shown.stdout.splitlines()] if shown.returncode == 0 else []
    states = {name: (state, "" if reason == "none" else reason) for name, state, reason in rows}
    return {
        "version": 1,
        "directory": str(cluster.directory),
        "name": cluster.name,
        "auth": now.settings.auth,
        "proctrack": now.settings.proctrack,
        "http_port": now.settings.http_port,
        "mode": now.spec.mode,
        "accounting": now.spec.accounting,
        "notices": list(now.notices),
        "env": cluster.exports,
        "slurmctld_pid": cluster.slurmctld_pid,
        "daemon_pid": cluster.daemon_pid,
        "slurmdbd_pid": cluster.slurmdbd_pid,
        "nodes": [
            {
                "name": node,
                "state": states.get(node, ("unknown", ""))[0],
                "reason": states.get(node, ("", ""))[1],
                "slurmd_pid": live[f"slurmd.{node}"].pid if f"slurmd.{node}" in live else None,
            }
            for node in cluster.node_names
        ],
    }


class _Group(click.Group):
    """Shows our own errors as errors, without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (DevClusterError, CommandError) as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=_Group, epilog=lesson([_UP, _ENV, _TRY, _STATUS, _DOWN], _EXITS))
def command() -> None:
    """A private, real, multi-node Slurm on this machine.

    It starts a real slurmctld, and a real slurmd for each node, on loopback. Each node has fake GPUs, a scripted kernel
    log, and this project's prolog and epilog. It needs Debian's packages slurmctld, slurmd and slurm-client, and uses
    MUNGE if that is installed. It touches no other Slurm of the machine. It also runs without root, and says what is
    then missing.
    """


directory_option = click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    default=default_directory,
    show_default="$XDG_RUNTIME_DIR/srobust-devcluster, or /tmp/srobust-devcluster-UID",
    help="Its folder. Several clusters can run side by side, each in its own folder.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")


@command.command(epilog=lesson([_UP, _ENV, _DOWN], _EXITS))
@click.option("--nodes", default=6, show_default=True, help="Number of nodes, at most 64.")
@click.option("--gpus-per-node", default=8, show_default=True, help="Fake GPUs of each node.")
@click.option("--daemon", is_flag=True, help="Start srobustd too.")
@click.option("--accounting", is_flag=True, help="Start slurmdbd on a private MariaDB too, so that sacct works.")
@click.option("--nodewatch", is_flag=True, help="Start srobust nodewatch for each node, on its scripted kernel log.")
@click.option("--standby", default=0, show_default=True, help="Nodes of the standby pool, which the daemon keeps.")
@click.option(
    "--mode",
    type=click.Choice(["observe", "act"]),
    default="act",
    show_default=True,
    help="observe: write plans down, do not carry them out.",
)
@click.option(
    "--timeout", "timeout_s", default=60.0, show_default=True, help="Seconds in which all nodes must be ready."
)
@directory_option
@json_option
def up(*, timeout_s: float, directory: Path, as_json: bool, **settings: Any) -> None:
    """Start it, and return when all nodes are ready, after a second or two.

    Ctrl-C ends what was started. If `up` was killed, type `srobust devcluster down`.
    """
    spec = Spec(directory=directory, **settings)
    for number in (signal.SIGTERM, signal.SIGHUP):  # a closed terminal must not leave half a cluster
        signal.signal(number, signal.default_int_handler)
    cluster = DevCluster.up(spec, timeout_s=timeout_s)
    if as_json:
        click.echo(json.dumps(_state(cluster), indent=1))
        return
    where = "" if directory == default_directory() else f" --dir {shlex.quote(str(directory))}"
    count = f"{spec.nodes} nodes of {spec.gpus_per_node} fake GPUs" if spec.gpus_per_node else f"{spec.nodes} nodes"
    click.echo(f"{count} are ready, in {cluster.directory} (logs in {cluster.layout.log}).")
    for notice in cluster.notices:
        click.echo(f"Note: {notice}")
    click.echo(f'Use it:          eval "$(srobust devcluster env{where})"; sinfo')
    click.echo(f"See its state:   srobust devcluster status{where}")
    click.echo(f"End it:          srobust devcluster down{where}")


@command.command(epilog=lesson([_ENV], _EXITS))
@directory_option
def env(directory: Path) -> None:
    """Print the variables that make a shell use it, for `eval`."""
    for key, value in DevCluster.attach(directory).exports.items():
        click.echo(f"export {key}={shlex.quote(value)}")


@command.command(epilog=lesson([_STATUS], _EXITS))
@directory_option
@json_option
def status(directory: Path, as_json: bool) -> None:
    """Show nodes and daemons; exit code 1 if there is no devcluster."""
    state = _state(DevCluster.attach(directory))
    if as_json:
        click.echo(json.dumps(state, indent=1))
        return
    click.echo(f"{state['name']} in {state['directory']}: auth {state['auth']}, proctrack {state['proctrack']}")
    for notice in state["notices"]:
        click.echo(f"Note: {notice}")
    click.echo(f"slurmctld  {state['slurmctld_pid'] or 'not running'}")
    click.echo(f"srobustd   {state['daemon_pid'] or 'not running'}")
    if state["accounting"]:
        click.echo(f"slurmdbd   {state['slurmdbd_pid'] or 'not running'}")
    for node in state["nodes"]:
        pid = node["slurmd_pid"] or "not running"
        click.echo(f"{node['name']:<10} slurmd {pid!s:<12} {node['state']:<12} {node['reason']}".rstrip())


@command.command(epilog=lesson([_DOWN], _EXITS))
@directory_option
@click.option("--keep", is_flag=True, help="Keep the folder with its logs and configuration.")
def down(directory: Path, keep: bool) -> None:
    """End everything that it and its jobs started, and remove its folder; nothing else is touched."""
    if not directory.is_dir():
        click.echo(f"No devcluster in {directory}.")
        return
    # This also ends what an interrupted `up` left behind without a record.
    DevCluster(directory.resolve()).down(keep=keep)
    click.echo(f"{directory}: down.")
