"""`srobust completion`: what a shell needs to complete our commands at a Tab."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from slurm_robust.cli.teaching import lesson

_EXAMPLES = (
    ('eval "$(srobust completion bash)"', "for this shell; in ~/.bashrc for all"),
    ('eval "$(srobust completion zsh)"', "the same; in ~/.zshrc below compinit"),
    ("srobust completion fish > ~/.config/fish/completions/srobust.fish", "for fish"),
    ("srobust completion bash > /etc/bash_completion.d/srobust", "for all users of a machine, as root"),
)


@click.command("completion", epilog=lesson(_EXAMPLES, [(0, "done"), (2, "wrong usage")]))
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the script with which SHELL completes commands, options and their values at a Tab."""
    made = get_completion_class(shell)
    assert made is not None
    # Only the text: click would start a bash here to ask for its version, and any of the last ten years will do.
    script = made(context.find_root().command, {}, "srobust", "_SROBUST_COMPLETE")
    click.echo(script.source_template % script.source_vars())
