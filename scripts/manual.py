"""Prints docs/commands.md: the --help text of every command (scripts/manual.py > docs/commands.md).

A test compares the two, so the page never names an option that does not exist.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

os.environ["COLUMNS"] = "100"

import click
from click.testing import CliRunner

from slurm_robust.cli.main import COMMANDS, cli

HEAD = """# Commands

The `--help` texts of all commands on one page. `scripts/manual.py` makes this page: edit the commands, not the page.
What `--json` prints is in [json.md](json.md).

For completion at a Tab, put `eval "$(srobust completion bash)"` into `~/.bashrc`; for zsh and fish see
[below](#srobust-completion).
"""


def commands() -> Iterator[tuple[str, ...]]:
    """The words that each command is typed with, in the order of `srobust --help`."""
    yield ()
    for name in COMMANDS:
        yield (name,)
        command = cli.get_command(click.Context(cli), name)
        if isinstance(command, click.Group):
            yield from ((name, inner) for inner in command.list_commands(click.Context(command)))


def main() -> None:
    """Print the page on stdout."""
    print(HEAD)
    for words in commands():
        text = CliRunner().invoke(cli, [*words, "--help"], prog_name="srobust").output
        lines = "\n".join(line.rstrip() for line in text.strip().splitlines())
        print(f"{'###' if len(words) == 2 else '##'} {' '.join(('srobust', *words))}\n\n```\n{lines}\n```\n")


if __name__ == "__main__":
    main()
