"""What the tests of the documents share: the pages, their sections, and the commands typed in them."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from slurm_robust.cli import run_step
from slurm_robust.cli.main import COMMANDS
from slurm_robust.nodecheck.stages.command import parser as check_parser
from slurm_robust.supervise.launch import options

ROOT = Path(__file__).resolve().parents[1]

PACKAGE = ROOT / "slurm_robust"

DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("[a-z]*/README.md")])

WITH_COMMANDS = [*DOCUMENTS, *sorted(ROOT.glob("docs/systemd/*")), ROOT / "examples" / "robust.yaml"]

IDS = {"ids": lambda path: str(path.relative_to(ROOT))}


def text_of(name: str) -> str:
    """A document's text."""
    return (ROOT / name).read_text(encoding="utf-8")


def section(name: str, heading: str) -> str:
    """What stands below a heading, up to the next one of its level or above."""
    level, fenced, lines = 0, False, list[str]()
    for line in text_of(name).splitlines():
        fenced ^= line.lstrip().startswith("```")
        found = None if fenced else re.match(r"(#+) (.*)", line)
        if found and level and len(found[1]) <= level:
            break
        if found and found[2] == heading:
            level = len(found[1])
        elif level:
            lines.append(line)
    assert level, f"{name} has no section {heading!r}"
    return "\n".join(lines) + "\n"


def in_backticks(text: str) -> set[str]:
    """Every word that stands in backticks."""
    return set(re.findall(r"`([^`\n]+)`", text))


def keys_of(kind: type[msgspec.Struct], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, default as plain values) of every key."""
    for found in msgspec.structs.fields(kind):
        value = found.default_factory() if found.default is msgspec.NODEFAULT else found.default
        if isinstance(value, msgspec.Struct):
            yield from keys_of(type(value), f"{prefix}{found.name}.")
        else:
            yield f"{prefix}{found.name}", msgspec.to_builtins(value)


def without_code(text: str) -> str:
    """The text without fenced blocks and code spans, in which brackets mean something else."""
    text = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"(?<!\[)`[^`\n]*`(?!\])", "", text)


def code_lines(path: Path) -> Iterator[str]:
    """Lines of fenced blocks, and code spans; every line of what is no Markdown."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".md":
        yield from text.splitlines()
        return
    fenced = re.findall(r"^ *```[a-z]*\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)
    yield from (line for block in fenced for line in block.splitlines())
    rest = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)
    yield from re.findall(r"`([^`\n]+)`", rest)


def typed(path: Path) -> Iterator[list[str]]:
    """The words behind each `srobust` that a document types (not `srobust:`, which begins its messages)."""
    for line in code_lines(path):
        for found in re.finditer(r"(?<![\w/.-])(?:/\S*/)?srobust ((?:[a-z]|--)[^|;)#&\"'`]*)", line):
            yield re.split(r" {2,}", found[1])[0].split()


def command_of(name: str) -> click.Command:
    """A subcommand."""
    command: click.Command = importlib.import_module(COMMANDS[name][0]).command
    return command


def options_of(words: list[str]) -> set[str]:
    """The options that the command of these words has."""
    if words[0] == "check":
        return {o for action in check_parser()._actions for o in action.option_strings}
    if words[0] == "run":
        return {f"--robust-{name}" for name in options._KNOWN - {"mode"}} | {"--robust", run_step.READY}
    command = command_of(words[0])
    known = {o for p in command.params for o in p.opts + p.secondary_opts} | {"--help"}
    if isinstance(command, click.Group):
        inner = words[1] if words[1:] and words[1] in command.commands else getattr(command, "default", "")
        if inner:
            known |= {o for p in command.commands[inner].params for o in p.opts}
    return known


def spans(path: Path) -> set[str]:
    """What stands in backticks outside of fenced blocks."""
    return in_backticks(re.sub(r"^ *```.*?^ *```$", "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL))


PARTS = ("slurm_robust", "prolog", "epilog", "spank", "srun_wrapper", "examples", "scripts", "benchmarks")
