"""Prints docs/commands.md: what every command's own --help says (scripts/manual.py > docs/commands.md).

A test compares the two, so that the page never tells of an option that is not there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

os.environ["COLUMNS"] = "100"

import click
from click.testing import CliRunner

from slurm_robust.cli.main import COMMANDS, cli

HEAD = """# Commands

What `srobust COMMAND --help` says, all on one page. Made by `scripts/manual.py`: edit the commands, not this page.
What `--json` prints is told in [json.md](json.md).

Completion at a Tab: `eval "$(srobust completion bash)"` in `~/.bashrc`; zsh and fish: [below](#srobust-completion).
"""


def commands() -> Iterator[tuple[str, ...]]:
    """The words of every command, in the order of `srobust --help`."""
    yield ()
    for name in COMMANDS:
        yield (name,)
        command = cli.get_command(click.Context(cli), name)
        if isinstance(command, click.Group):
            yield from ((name, inner) for inner in command.list_commands(click.Context(command)))


def main() -> None:
    """All of the page on stdout."""
    print(HEAD)
    for words in commands():
        text = CliRunner().invoke(cli, [*words, "--help"], prog_name="srobust").output
        lines = "\n".join(line.rstrip() for line in text.strip().splitlines())
        print(f"{'###' if len(words) == 2 else '##'} {' '.join(('srobust', *words))}\n\n```\n{lines}\n```\n")


if __name__ == "__main__":
    main()
