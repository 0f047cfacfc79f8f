"""The documents and the code say the same: keys and defaults, links, commands and options, outputs, figures."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
import yaml
from click.testing import CliRunner

from slurm_robust import checkpoint, config
from slurm_robust.cli.main import COMMANDS, cli
from slurm_robust.daemon.api.http import metrics
from slurm_robust.localize import stillness
from slurm_robust.model import (
    EXIT_REQUEUE_WANTED,
    EXIT_STOPPED_FOR_GOOD,
    EXIT_USAGE,
    TIME_KEYS,
    ActionKind,
    Incident,
    Road,
)
from slurm_robust.nodecheck.catalogue import kernel_patterns
from slurm_robust.nodecheck.engine import registry
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


# -- configuration.md -------------------------------------------------------------------------------------------------


def keys_of(kind: type[msgspec.Struct], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, default as plain values) of every key."""
    for found in msgspec.structs.fields(kind):
        value = found.default_factory() if found.default is msgspec.NODEFAULT else found.default
        if isinstance(value, msgspec.Struct):
            yield from keys_of(type(value), f"{prefix}{found.name}.")
        else:
            yield f"{prefix}{found.name}", msgspec.to_builtins(value)


def documented_keys() -> dict[str, tuple[str, str, str]]:
    """Key → (default as written, unit, meaning), from the tables."""
    rows = re.findall(
        r"^\| `([a-z0-9_.]+)` \| `([^`]*)` \|([^|]*)\| (.+) \|$", text_of("docs/configuration.md"), re.MULTILINE
    )
    assert len({key for key, *_ in rows}) == len(rows), "a key stands there twice"
    return {key: (default, unit.strip(), meaning) for key, default, unit, meaning in rows}


def test_every_configuration_key_is_documented_with_its_true_default() -> None:
    """No key is missing, none is invented, and each default is the code's, read as YAML."""
    known = dict(keys_of(config.Config))
    written = documented_keys()
    assert set(written) == set(known)
    plain = {key: list(value) if isinstance(value, tuple) else value for key, value in known.items()}
    assert {key: yaml.safe_load(default) for key, (default, _, _) in written.items()} == plain


def test_units_stand_where_names_tell_them() -> None:
    """A key that ends in a unit has that unit in its column."""
    units = {"_s": "s", "_min": "min", "_days": "days"}
    for key, (_, unit, meaning) in documented_keys().items():
        for ending, expected in units.items():
            if key.endswith(ending):
                assert unit == expected, key
        assert meaning.strip(), key


def test_the_words_for_a_wrong_file_are_the_true_ones() -> None:
    """The example of an error is what the program says."""
    with pytest.raises(config.ConfigError) as error:
        config.parse("seat:\n  max_active: 3\n  duration: 3\n")
    assert str(error.value) in text_of("docs/configuration.md")


def test_the_example_configuration_is_valid_and_starts_by_observing() -> None:
    """examples/robust.yaml loads, and a site that copies it changes nothing before it says so."""
    assert config.load(ROOT / "examples" / "robust.yaml").mode == "observe"


@pytest.mark.parametrize("path", DOCUMENTS, **IDS)
def test_yaml_in_documents_is_valid_configuration(path: Path) -> None:
    """Every fenced block of YAML could stand in robust.yaml."""
    for block in re.findall(r"^ *```yaml\n(.*?)^ *```", path.read_text("utf-8"), re.MULTILINE | re.DOTALL):
        config.parse(block, str(path))


# -- links ------------------------------------------------------------------------------------------------------------


def without_code(text: str) -> str:
    """The text without fenced blocks and code spans, in which brackets mean something else."""
    text = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"(?<!\[)`[^`\n]*`(?!\])", "", text)


def anchors(path: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    found = re.findall(r"^#+ (.+)$", path.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


@pytest.mark.parametrize("path", DOCUMENTS, **IDS)
def test_links_between_documents_resolve(path: Path) -> None:
    """Every relative link leads to a file of the repository, and to a heading where it names one."""
    for target in re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", without_code(path.read_text("utf-8"))):
        if target.startswith(("https://", "http://")):
            continue
        name, _, anchor = target.partition("#")
        there = (path.parent / name).resolve() if name else path
        assert there.exists(), f"{path.name}: {target}"
        assert there.is_relative_to(ROOT), f"{path.name}: {target} leads out of the repository"
        assert not anchor or anchor in anchors(there), f"{path.name}: {target}: no such heading"


def test_every_document_can_be_reached_from_the_readme() -> None:
    """Nobody has to know that a page exists."""
    reached, todo = set(), [ROOT / "README.md"]
    while todo:
        path = todo.pop()
        if path in reached or path.suffix != ".md":
            continue
        reached.add(path)
        links = re.findall(r"\]\(([^)#\s]+)", without_code(path.read_text("utf-8")))
        todo += [there for t in links if "://" not in t and (there := (path.parent / t).resolve()).is_file()]
    away = {ROOT / "examples" / "README.md", ROOT / "spank" / "README.md"}  # beside what they explain
    assert set(DOCUMENTS) - reached <= away


# -- commands and options ---------------------------------------------------------------------------------------------


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
        return {f"--robust-{name}" for name in options._KNOWN - {"mode"}} | {"--robust"}
    command = command_of(words[0])
    known = {o for p in command.params for o in p.opts + p.secondary_opts} | {"--help"}
    if isinstance(command, click.Group):
        for word in words[1:2]:
            if word in command.commands:
                known |= {o for p in command.commands[word].params for o in p.opts}
    return known


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


# -- json.md ----------------------------------------------------------------------------------------------------------


def keys_written(module: str, *functions: str) -> set[str]:
    """Every key of every object that these functions write out in full."""
    tree = ast.parse((PACKAGE / module).read_text(encoding="utf-8"))
    found: set[str] = set()
    for name in functions:
        inside = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name]
        assert inside, f"{module} has no {name}: this test must follow it"
        dicts = [d for f in inside for d in ast.walk(f) if isinstance(d, ast.Dict)]
        found |= {k.value for d in dicts for k in d.keys if isinstance(k, ast.Constant) and isinstance(k.value, str)}
    assert found
    return found


@pytest.mark.parametrize(
    ("heading", "keys"),
    [
        ("srobust check", keys_written("nodecheck/engine/finding.py", "to_json")),
        ("srobust check", keys_written("nodecheck/catalogue/explain.py", "as_json")),
        ("srobust doctor", keys_written("cli/commands/doctor.py", "command")),
        ("srobust localize", keys_written("localize/verdict_text.py", "to_json") | {"problems"}),
        ("srobust localize", keys_written("localize/stacks/merge.py", "tree_json") | {"tree"}),
        ("srobust incidents", keys_written("daemon/api/state_snapshot.py", "show_incident", "_plan")),
        (
            "srobust nodes",
            keys_written("daemon/api/state_snapshot.py", "take") & {"name", "room", "owner", "word", "since_s"},
        ),
        ("srobust standby", {"name", "partition", "gres", "nodes", "held", "wanted", "short", "ends_at_s"}),
        ("srobust standby", keys_written("cli/commands/standby.py", "size")),
        ("srobust status", keys_written("daemon/api/state_snapshot.py", "_job")),
        ("srobust breaker", keys_written("cli/commands/breaker.py", "_show")),
        ("srobust devcluster", keys_written("cli/commands/devcluster.py", "_state")),
        ("srobust ckpt", keys_written("cli/commands/ckpt.py", "latest", "list_", "prune", "_entry")),
        ("srobust ckpt", keys_written("cli/commands/ckpt_seal.py", "command", "_seal_all")),
        ("srobust ckpt", set(checkpoint.Report.__struct_fields__) | set(checkpoint.Problem.__struct_fields__)),
        ("srobust stacks", keys_written("cli/commands/stacks.py", "_as_json")),
        ("incident.json", set(Incident.__dataclass_fields__)),
        ("Times", {*TIME_KEYS, "accepted"}),
    ],
)
def test_every_key_of_an_output_is_documented(heading: str, keys: set[str]) -> None:
    """Each stands in its section, in a table or in an example."""
    text = section("docs/json.md", heading)
    shown = in_backticks(text) | {key for span in in_backticks(text) for key in re.findall(r'"(\w+)":', span)}
    assert keys <= shown, f"{heading}: {sorted(keys - shown)}"


def test_the_whole_snapshot_is_documented() -> None:
    """Whatever the daemon shows of itself stands in one of three sections."""
    text = "".join(section("docs/json.md", f"srobust {name}") for name in ("status", "nodes", "standby"))
    assert keys_written("daemon/api/state_snapshot.py", "take") <= in_backticks(text)


def test_examples_of_outputs_are_the_commands_keys() -> None:
    """The examples of `check` and `localize` have exactly the keys that the code writes, in its order."""
    for heading, module in (
        ("srobust check", "nodecheck/engine/finding.py"),
        ("srobust localize", "localize/verdict_text.py"),
    ):
        block = re.search(r"```json\n(.*?)```", section("docs/json.md", heading), re.DOTALL)
        assert block is not None
        shown = set(re.findall(r'"(\w+)":', block[1]))
        tree = keys_written("localize/stacks/merge.py", "tree_json") | {"tree", "problems"}
        assert shown == keys_written(module, "to_json") | (tree if "localize" in heading else set())


def test_checkpoint_outputs_have_the_documented_keys(tmp_path: Path) -> None:
    """A real run: latest of an empty folder, and verify of a file without a seal."""
    (tmp_path / "step-5").mkdir()
    (tmp_path / "step-5" / "w.bin").write_bytes(b"1")
    text = section("docs/json.md", "srobust ckpt")
    for words in (["latest"], ["list"], ["verify"]):
        done = CliRunner().invoke(cli, ["ckpt", *words, str(tmp_path), "--json"])
        row = re.search(rf"^\| `srobust ckpt {words[0]} .*$", text, re.MULTILINE)
        assert row is not None
        assert set(json.loads(done.stdout)) <= in_backticks(row[0])


def kinds_told() -> set[str]:
    """The kinds of story lines that the code can write."""
    found: set[str] = set()
    for path in (PACKAGE / "supervise").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "log_event":
                first = node.args[0] if len(node.args) == 2 else None
                if isinstance(first, ast.Constant) and isinstance(first.value, str):
                    found.add(first.value)
            # The wait for a requeue decides first, and reports then.
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "WaitStep"
                and node.args
            ):
                first = node.args[0]
                if isinstance(first, ast.Constant) and isinstance(first.value, str):
                    found.add(first.value)
    return found


def test_every_kind_of_story_line_is_documented_and_no_other() -> None:
    """story.jsonl is read by tools: its kinds are listed, all of them."""
    rows = re.findall(r"^\| `([a-z-]+)` \|", section("docs/json.md", "story.jsonl"), re.MULTILINE)
    assert set(rows) == kinds_told()
    assert len(rows) == len(set(rows))


def test_roads_are_documented() -> None:
    """The names of all roads."""
    assert {road.value for road in Road} <= in_backticks(section("docs/json.md", "incident.json"))


# -- figures and files ------------------------------------------------------------------------------------------------


def test_the_table_of_patience_is_the_codes() -> None:
    """How long which kind of standing still must last, in the order of the code."""
    rows = re.findall(r"^ *\| .+ \| (\d) \| (\d+) s \|$", text_of("docs/architecture.md"), re.MULTILINE)
    known = (stillness.SURE, stillness.BLOCKED, stillness.HELD, stillness.LIKELY, stillness.SLOW)
    assert [(int(count), float(span)) for count, span in rows] == [(p.captures, p.span_s) for p in known]


def test_every_part_of_the_package_is_in_the_architecture() -> None:
    """Each folder and file at the top of the package has its question."""
    parts = {p.name + ("/" if p.is_dir() else "") for p in PACKAGE.iterdir() if not p.name.startswith(("_", "."))}
    assert parts <= in_backticks(section("docs/architecture.md", "Folders"))


def test_slurm_conf_names_scripts_that_are_there() -> None:
    """Each line is `Key=Value`, no key twice, and every script named is one of ours; checks.md has the same lines."""
    lines = [line for line in text_of("examples/slurm.conf").splitlines() if line and not line.startswith("#")]
    pairs = dict(line.split("=", 1) for line in lines)
    assert len(pairs) == len(lines)
    for value in pairs.values():
        if value.startswith("/"):
            folder, name = Path(value).parts[-2:]
            assert (ROOT / folder / name).exists(), value
    told = section("docs/checks.md", "Prolog, epilog, health check")
    for key in ("Prolog", "Epilog", "PrologFlags", "HealthCheckProgram", "SchedulerParameters"):
        assert f"{key}={pairs[key]}" in told, key


# -- what the documents say of the code --------------------------------------------------------------------------------


def spans(path: Path) -> set[str]:
    """What stands in backticks outside of fenced blocks."""
    return in_backticks(re.sub(r"^ *```.*?^ *```$", "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL))


PARTS = ("slurm_robust", "prolog", "epilog", "spank", "srun_wrapper", "examples", "scripts", "benchmarks")


def our_text() -> str:
    """Every file of ours that runs."""
    found = (path for part in PARTS for path in (ROOT / part).rglob("*") if "build" not in path.parts)
    files = (path for path in found if path.is_file() and path.suffix not in (".pyc", ".md"))
    return "\n".join(path.read_text("utf-8", errors="replace") for path in files)


def test_files_that_the_documents_name_are_there() -> None:
    """In backticks, or typed in a block: `scripts/kill_saves.py`, `python benchmarks/restart.py`."""
    folders = "|".join((*PARTS, "docs", "tests"))
    for path in DOCUMENTS:
        for line in code_lines(path):
            for name in re.findall(rf"(?<![\w/.-])(?:\./)?((?:{folders})/[\w./*-]*\w\*?)", line):
                built = name.startswith("spank/build")
                assert built or list(ROOT.glob(name)), f"{path.name}: {name}"


def test_configuration_keys_that_the_documents_name_exist() -> None:
    """`supervise.action_limit_s` and its kind, wherever one stands; methods of the checkpoint package are none."""
    known = {name for key, _ in keys_of(config.Config) for name in (key, *key.rsplit(".", 1)[:1])}
    sections = "|".join(sorted({key.split(".")[0] for key in known if "." in key}))
    for path in DOCUMENTS:
        for span in spans(path):
            found = re.match(rf"((?:{sections})\.[a-z0-9_.]+?)(?:\.<|: |$)", span)
            if not found or found[1] in known:
                continue
            head, _, name = found[1].partition(".")
            method = head == "checkpoint" and hasattr(checkpoint, name.split(".")[0])
            options = found[1].startswith("nodecheck.options.")
            module = (PACKAGE / head / f"{name}.py").exists()
            assert method or options or module or (ROOT / "benchmarks" / found[1]).exists(), f"{path.name}: {found[1]}"


def test_variables_that_the_documents_name_are_read_or_set() -> None:
    """Each `SROBUST_…` stands in the code, and each that a site or user may set stands in configuration.md."""
    text = our_text()
    for path in DOCUMENTS:
        for name in set(re.findall(r"\bSROBUST_[A-Z_]*[A-Z]\b", path.read_text("utf-8"))):
            assert name in text, f"{path.name}: {name}"


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


ROWS = {
    "quarantine": "QUARANTINE", "recheck": "RECHECK", "cancel": "CANCEL", "drain": "DRAIN", "set DOWN": "SET_DOWN",
    "resume": "RESUME", "seat": "CREATE_SEAT", "release": "RELEASE_JOB",
    "requeue, change, answer": "REQUEUE POINT_JOB_AT_SEAT ANSWER LIFT_EXCLUDE",
    "standby": "KEEP_STANDBY", "leave, or none": "LEAVE_MARK",
    "delete": "RELEASE_QUARANTINE LEAVE_SEAT DELETE_SEAT",
}  # fmt: skip
"""Rows of the table of what may be done to Slurm → the actions of model.py that they tell."""


def test_every_action_on_slurm_is_in_the_administrators_table() -> None:
    """`Nothing else is ever done` has to be true: a new kind of action needs a row, or belongs to one."""
    rows = re.findall(r"^\| ([^|]+) \|", section("docs/operations.md", "What it may do"), re.MULTILINE)
    assert set(rows) - {"action"} == set(ROWS)
    told = {name for names in ROWS.values() for name in names.split()}
    assert told | {"WAIT_RUNNING"} == {kind.name for kind in ActionKind}, "WAIT_RUNNING only looks"


def test_metrics_that_the_documents_name_exist() -> None:
    """Alerts are written from them."""
    value = {
        "incidents": [{"outcome": "running", "times": {"accepted": 1.0, "running": 2.0}}],
        "standby": [{"name": "p"}],
    }
    shown = metrics(value, 1.0).decode()
    for path in DOCUMENTS:
        for name in {n for span in spans(path) for n in re.findall(r"^srobust_[a-z_]+", span)} - {"srobust_run"}:
            assert f"\n{name}" in f"\n{shown}", f"{path.name}: {name}"


def test_numbers_of_checks_are_the_registrys() -> None:
    """How many there are in all and in each group, and of how many kinds of trouble the kernel log tells."""
    text = section("docs/checks.md", "The node checks")
    assert re.search(r"There are \d+ checks", text)
    named = re.findall(r"(\d+) in `(\w+)`", text)
    assert {group: int(count) for count, group in named} == {g: len(names) for g, names in registry.GROUPS.items()}
    for path in [ROOT / "README.md", *ROOT.glob("docs/*.md")]:
        for count in re.findall(r"[Tt]here are (\d+) (?:node )?checks\b", path.read_text("utf-8")):
            assert int(count) == len(registry.NAMES), f"{path.name}: {count} checks"
        for count in re.findall(r"\b(\d+) kinds of trouble", path.read_text("utf-8")):
            assert int(count) == len(kernel_patterns.KINDS), f"{path.name}: {count} kinds of trouble"


def test_checks_that_the_documents_name_exist() -> None:
    """By the beginnings of their names, and in examples of `--only`."""
    for path in DOCUMENTS:
        for name in {span for span in spans(path) if re.fullmatch(r"(?:gpu|rdma|ethernet|kernel)_[a-z0-9_]+", span)}:
            assert name in registry.NAMES, f"{path.name}: {name}"
        for words in typed(path):
            if words[0] == "check" and "--only" in words:
                for name in words[words.index("--only") + 1].split(","):
                    assert registry.checks_of(name), f"{path.name}: --only {name}"


def test_no_document_denies_a_check_that_there_is() -> None:
    """`There is no NVML check`: once true, and long false when somebody looked."""
    checks = registry.select("full")
    known = " ".join(f"{check.name} {check.question} {check.reads}" for check in checks).lower()
    for path in [ROOT / "README.md", *ROOT.glob("docs/*.md")]:
        for denied in re.findall(r"\bno ((?:\w+(?:, | or | and )?)+) checks?\b", path.read_text("utf-8")):
            for name in re.split(r", | or | and ", denied):
                assert name.lower() not in known, f"{path.name}: no {name} check"


def uses(pattern: str, *parts: str) -> bool:
    """Whether the code in these folders or files of the package has such a text."""
    there = [PACKAGE / part for part in parts]
    files = [path for part in there for path in ([part] if part.is_file() else part.rglob("*.py"))]
    assert files, parts
    return any(re.search(pattern, path.read_text("utf-8")) for path in files)


MISSING: dict[str, Callable[[], bool]] = {
    "Nothing is done about it": lambda: uses(r"claim|decide\(|relaunch|requeue", "supervise/watch/slowness.py"),
    "Native stacks and GPU kernels are not looked at": lambda: uses(r'"--native"|cuda-gdb', "supervise"),
    "No pairwise test of nodes": (PACKAGE / "stoptime").exists,
    "The GPU's memory\n  itself is looked at between jobs only": lambda: uses(r"nvml", "supervise"),
    "DCGM, switches and the\n  board's event log (IPMI) are not asked": lambda: uses(
        r"import (?:pydcgm|dcgm)|\[\"(?:dcgmi|ipmitool|ibnetdiscover)\"", "nodecheck"
    ),
    "They are not warmed up": lambda: uses(r"\bwarm_?up|preload", "daemon", "policy"),
    "Het jobs run unsupervised": lambda: "het_job" not in (PACKAGE / "policy/job/decide.py").read_text("utf-8"),
    "expedited requeue (25.11) is not used": lambda: uses(
        r"requeue=expedite", "slurm", "supervise", "daemon", "policy"
    ),
    "There is no dashboard": lambda: uses(r"text/html", "daemon"),
    "no simulator of a cluster": lambda: any(PACKAGE.rglob("*simulat*")),
    "no command that practises failures": lambda: "drill" in COMMANDS,
}
"""What README.md says is missing → whether it has come since: then that line has to go."""


def test_what_the_readme_says_is_missing_is_missing() -> None:
    """Each of its lines is true, and none of those that a machine can judge is left out of this table."""
    text = section("README.md", "What it does not do yet")
    for sentence, has_come in MISSING.items():
        assert sentence in text, sentence
        assert not has_come(), f"README.md says {sentence!r}, and it is there by now"


def test_what_the_readme_says_is_there_is_there() -> None:
    """The same section names what stands in for what is missing."""
    text = section("README.md", "What it does not do yet")
    for sentence, there in {
        "`progress.timing` in a live job": (PACKAGE / "supervise/watch/slowness.py").exists(),
        "`srobust localize --timings`": "--timings" in options_of(["localize"]),
        "`srobust stacks --rounds`": "--rounds" in options_of(["stacks"]),
        "PyTorch's flight recorder": (PACKAGE / "localize/recorder/vote.py").exists(),
        "NCCL's RAS": (PACKAGE / "localize/ras.py").exists(),
        "told by slurmstepd where the SPANK plugin is installed": (PACKAGE / "supervise/agent/exits.py").exists(),
        "that still hold a GPU": (PACKAGE / "supervise/agent/gpu_holders.py").exists(),
        "the full stage also computes on the GPUs": bool(registry.GROUPS["torch"]),
        "checked in full when they join": (PACKAGE / "daemon/controllers/standby_check.py").exists(),
        "`/metrics` and `/state.json`": (PACKAGE / "daemon/api/http.py").exists(),
    }.items():
        assert sentence in text, sentence
        assert there, sentence
