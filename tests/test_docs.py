"""Outputs, actions, metrics and tables in the documents are those of the code."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from documents import (
    DOCUMENTS,
    PACKAGE,
    in_backticks,
    section,
    spans,
    text_of,
)

from slurm_robust import checkpoint
from slurm_robust.cli.main import cli
from slurm_robust.core.model import TIME_KEYS, ActionKind, Incident, Road
from slurm_robust.daemon.api.metrics import metrics
from slurm_robust.localize.stacks import blocking
from slurm_robust.policy.job.code_versions import PendingCode
from slurm_robust.supervise.versions.changes import CodeChanges
from slurm_robust.supervise.versions.version_folder import CodeVersion


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
        (
            "srobust diagnose",
            keys_written("cli/diagnosis/shown.py", "as_json", "_finding_json", "_incident_json", "_resemblance_json"),
        ),
        ("srobust diagnose", keys_written("cli/commands/diagnose.py", "log")),
        ("srobust diagnose", keys_written("cli/hinting.py", "_json")),
        ("srobust diagnose", keys_written("cli/rule_review.py", "_json")),
        ("srobust localize", keys_written("localize/verdict_text.py", "to_json") | {"problems"}),
        ("srobust localize", keys_written("localize/stacks/merge.py", "tree_json") | {"tree"}),
        ("srobust incidents", keys_written("daemon/api/state_snapshot.py", "show_incident", "_verdict", "_plan")),
        ("srobust nodes", keys_written("daemon/api/node_rows.py", "_row")),
        ("srobust standby", keys_written("daemon/api/state_snapshot.py", "_pool")),
        ("srobust standby", keys_written("cli/commands/standby.py", "size")),
        ("srobust status", keys_written("daemon/api/state_snapshot.py", "_job")),
        ("srobust breaker", keys_written("cli/commands/breaker.py", "_show")),
        ("srobust update", keys_written("cli/commands/update.py", "_show")),
        ("srobust update", set(CodeVersion.__dataclass_fields__) | set(CodeChanges.__dataclass_fields__)),
        ("srobust update", set(PendingCode.__dataclass_fields__)),
        ("srobust report sql", {"version", "columns", "rows", "doubts"}),
        ("srobust devcluster", keys_written("cli/commands/devcluster.py", "_state")),
        ("srobust ckpt", keys_written("cli/commands/ckpt.py", "latest", "list_", "prune")),
        ("srobust ckpt", keys_written("cli/ckpt_output.py", "reasons")),
        ("srobust ckpt", set(checkpoint.Entry.__struct_fields__)),
        ("srobust ckpt", keys_written("cli/commands/ckpt_seal.py", "command", "_seal_all")),
        ("srobust ckpt", set(checkpoint.Report.__struct_fields__) | set(checkpoint.Problem.__struct_fields__)),
        ("srobust report", keys_written("report/pages/as_json.py", "to_json", "_section")),
        ("srobust stacks", keys_written("cli/commands/stacks.py", "_as_json")),
        ("srobust test", keys_written("stoptime/conclusion.py", "to_json") | {"job"}),
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
    written = keys_written("daemon/api/state_snapshot.py", "take", "_state", "_pool", "_job", "_waiting")
    assert written | keys_written("daemon/api/node_rows.py", "_row") | {"nodes"} <= in_backticks(text)


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


def test_the_table_of_patience_is_the_codes() -> None:
    """How long which kind of standing still must last, in the order of the code."""
    rows = re.findall(r"^ *\| .+ \| (\d) \| (\d+) s \|$", text_of("docs/architecture.md"), re.MULTILINE)
    known = (blocking.SURE, blocking.BLOCKED, blocking.HELD, blocking.LIKELY, blocking.SLOW)
    assert [(int(count), float(span)) for count, span in rows] == [(p.captures, p.span_s) for p in known]


def test_every_part_of_the_package_is_in_the_architecture() -> None:
    """Each folder and file at the top of the package has its question."""
    parts = {p.name + ("/" if p.is_dir() else "") for p in PACKAGE.iterdir() if not p.name.startswith(("_", "."))}
    text = section("docs/architecture.md", "Folders")
    assert parts <= in_backticks(text)
    rows = re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)
    assert sorted(rows) == sorted(set(rows)), "each has one row"
    assert set(rows) <= parts, "and exists"


ROWS = {
    "quarantine": "QUARANTINE", "recheck": "RECHECK", "cancel": "CANCEL", "drain": "DRAIN", "set DOWN": "SET_DOWN",
    "resume": "RESUME", "seat": "CREATE_SEAT", "release": "RELEASE_JOB",
    "requeue, change, answer": "REQUEUE POINT_JOB_AT_SEAT ANSWER LIFT_EXCLUDE",
    "standby": "KEEP_STANDBY", "standby check": "STANDBY_CHECK", "drain permit": "DRAIN_PERMIT",
    "delete": "RELEASE_QUARANTINE LEAVE_SEAT DELETE_SEAT DELETE_ORPHAN", "repair": "REBOOT REPAIR_COMMAND",
    "clear fault": "CLEAR_FAULT", "pair": "HOLD_PAIR RELEASE_PAIR", "pair test": "TEST_PAIR",
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
    shown = set(re.findall(r"^# TYPE (\w+)", metrics({}, 1.0).decode(), re.MULTILINE))
    for path in DOCUMENTS:
        for name in {n for span in spans(path) for n in re.findall(r"^srobust_[a-z_]+", span)} - {"srobust_run"}:
            assert name in shown, f"{path.name}: {name}"
