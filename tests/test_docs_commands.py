"""Commands, options and exit codes in the documents are those of the program."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from documents import (
    DOCUMENTS,
    IDS,
    ROOT,
    WITH_COMMANDS,
    command_of,
    in_backticks,
    options_of,
    spans,
    text_of,
    typed,
)

from slurm_robust.cli.main import COMMANDS
from slurm_robust.core.model import EXIT_REQUEUE_WANTED, EXIT_STOPPED_FOR_GOOD, EXIT_USAGE
from slurm_robust.supervise.launch import options


@pytest.mark.parametrize("path", WITH_COMMANDS, **IDS)
def test_every_command_and_option_in_the_documents_exists(path: Path) -> None:
    """What a reader types works: subcommands, theirs, and their options (of `run`, our own: the rest is srun's)."""
    for words in typed(path):
        name = words[0]
        if name.startswith("--"):
            assert name in ("--version", "--help"), words
            continue
        assert name in COMMANDS, f"srobust {name}"
        command = command_of(name)
        if isinstance(command, click.Group) and words[1:] and re.fullmatch(r"[a-z]+", words[1]):
            assert words[1] in command.commands, f"srobust {name} {words[1]}"
        for word in words[1:]:
            option = word.split("=")[0].strip("[].,…")
            if word == "--" or (name == "run" and not word.startswith(("-", "["))):
                break
            if option.startswith("--") and (name != "run" or option.startswith("--robust")):
                assert option.rstrip("-") in options_of(words), f"srobust {' '.join(words)}: {option}"


def test_commands_are_found_in_the_documents() -> None:
    """The test above looks at something: the README alone types several."""
    assert {words[0] for words in typed(ROOT / "README.md")} >= {"run", "status", "incidents", "nodes", "stacks"}


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_is_documented(name: str) -> None:
    """Each subcommand, and each of a group's, stands in some document."""
    shown = {" ".join(words[:2]) for path in DOCUMENTS for words in typed(path)}
    assert any(words.split(" ")[0] == name for words in shown), f"srobust {name}"
    command = command_of(name)
    for inner in command.commands if isinstance(command, click.Group) else ():
        plain = (name, inner) in {("breaker", "show"), ("daemon", "http")}
        assert plain or f"{name} {inner}" in shown or inner in in_backticks(text_of("docs/json.md")), f"{name} {inner}"


def test_the_options_of_run_are_told_as_the_program_tells_them() -> None:
    """The guide's synopsis is `srobust run`'s own."""
    lines = [line for line in options.USAGE.splitlines() if line.startswith("  --robust")]
    assert len(lines) == len(options._KNOWN)
    for line in lines:
        assert line in text_of("docs/engineer.md")


def test_exit_codes_of_run_are_the_true_ones() -> None:
    """The guide's table has the three codes of our own."""
    rows = re.findall(r"^\| (\d+) \|", text_of("docs/engineer.md"), re.MULTILINE)
    assert [int(code) for code in rows] == [EXIT_USAGE, EXIT_REQUEUE_WANTED, EXIT_STOPPED_FOR_GOOD]


def test_the_manual_is_what_the_commands_say() -> None:
    """docs/commands.md is made from --help; where they differ: scripts/manual.py > docs/commands.md."""
    program = [sys.executable, str(ROOT / "scripts" / "manual.py")]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    made = subprocess.run(program, capture_output=True, text=True, check=True, env=env).stdout
    assert made.rstrip() == text_of("docs/commands.md").rstrip(), "python scripts/manual.py > docs/commands.md"


def test_options_that_the_checkpoint_page_names_exist() -> None:
    """A bare `--healthy` is an option of some `srobust ckpt` command; the rest of the page's belong to frameworks."""
    group = command_of("ckpt")
    assert isinstance(group, click.Group)
    known = {option for name in group.commands for option in options_of(["ckpt", name])} | {"--export"}
    foreign = {"--launcher", "--hostfile", "--no_ssh_check", "--master_addr", "--checkpoint.load_step", "--robust"}
    for name in ("checkpoints", "checkpointer"):
        for span in spans(ROOT / "docs" / f"{name}.md"):
            option = re.match(r"--[a-z_.-]+\w", span)
            if option and not option[0].startswith("--robust-"):
                assert option[0] in known | foreign, option[0]
