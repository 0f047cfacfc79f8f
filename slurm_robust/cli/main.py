"""The `srobust` command: a table of subcommands, each loaded only when it is typed."""

from __future__ import annotations

import difflib
import importlib
import sys

import click
from click.shell_completion import CompletionItem

from slurm_robust import __version__

COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("slurm_robust.cli.commands.run", "Supervise a training step; a drop-in for srun."),
    "update": ("slurm_robust.cli.commands.update", "Give a running job another version of its code, or take it back."),
    "attach": ("slurm_robust.cli.commands.attach", "Watch a job that already runs, nothing in it changed."),
    "stacks": ("slurm_robust.cli.commands.stacks", "Merged stacks of a live job, also one never wrapped."),
    "check": ("slurm_robust.cli.commands.check", "Is this node fit to train?"),
    "test": ("slurm_robust.cli.commands.test", "Which node or link fails, while the training stands still?"),
    "nodewatch": ("slurm_robust.cli.commands.nodewatch", "Tell the jobs of this node what happens to it."),
    "ckpt": ("slurm_robust.cli.commands.ckpt", "Seal, verify and choose checkpoints."),
    "diagnose": ("slurm_robust.cli.commands.diagnose", "What broke, in its own words: the root among a log's errors."),
    "localize": ("slurm_robust.cli.commands.localize", "Who is at fault, from captured stacks."),
    "daemon": ("slurm_robust.cli.commands.daemon", "The control daemon."),
    "status": ("slurm_robust.cli.commands.status", "What needs a person now; nodes, jobs, incidents, breaker."),
    "incidents": ("slurm_robust.cli.commands.incidents", "What happened, when, why, and what was done."),
    "nodes": ("slurm_robust.cli.commands.nodes", "The state of each node, and why."),
    "standby": ("slurm_robust.cli.commands.standby", "The standby pools, and how large they should be."),
    "report": ("slurm_robust.cli.commands.report", "How did the cluster do? A page, and its past as tables."),
    "breaker": ("slurm_robust.cli.commands.breaker", "Show or reset the breaker."),
    "notify": ("slurm_robust.cli.commands.notify", "Try the targets that are told what happened."),
    "doctor": (
        "slurm_robust.cli.commands.doctor",
        "What slurm.conf and this machine should have, with the line that fixes it.",
    ),
    "completion": ("slurm_robust.cli.commands.completion", "Tab completion for bash, zsh and fish."),
    "devcluster": ("slurm_robust.cli.commands.devcluster", "A private, real, multi-node Slurm on this machine."),
}
"""name → (module with a click command called `command`, its line in `srobust --help`)."""


class LazyGroup(click.Group):
    """Imports a subcommand when it is typed; `--help` imports none."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load the command, and return it."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(COMMANDS[cmd_name][0]).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve as click does; for an unknown name, suggest the most similar command."""
        name = args[0] if args else ""
        if name and not name.startswith("-") and name not in COMMANDS:
            near = difflib.get_close_matches(name, COMMANDS, n=1)
            meant = f" Did you mean {near[0]!r}?" if near else " See: srobust --help"
            raise click.UsageError(f"no such command {name!r}.{meant}", ctx)
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names with their help lines, without loading anything."""
        if incomplete.startswith("-"):
            return click.Command.shell_complete(self, ctx, incomplete)
        return [CompletionItem(name, help=line) for name, (_, line) in COMMANDS.items() if name.startswith(incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table of `--help`, without loading any command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


def _version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from slurm_robust.core.build import build  # noqa: PLC0415 (it reads the whole package)

        click.echo(f"srobust, version {__version__}, build {build()}")
        context.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show version and build."
)
def cli() -> None:
    """Training jobs on plain Slurm that survive hangs, crashes and bad nodes.

    \b
    In an sbatch file:   srobust run python train.py        (instead of: srun python train.py)
    On a live job:       srobust stacks 1234
    At 3 a.m.:           srobust status;  srobust incidents
    To try it all here:  srobust devcluster up --daemon

    Every command teaches with examples and exit codes: srobust COMMAND --help
    """  # noqa: D301 (click's own mark for text that is not to be wrapped)


def main() -> None:
    """Entry point of `srobust`."""
    cli(prog_name="srobust")


def daemon_main() -> None:
    """Entry point of `srobustd`: the same as `srobust daemon`."""
    cli(args=["daemon", *sys.argv[1:]], prog_name="srobust")


if __name__ == "__main__":
    main()
