"""`srobust diagnose`: any log in, the root and what to do out; and the rules, shown and checked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from slurm_robust.cli.commands.diagnose import command
from slurm_robust.cli.diagnosis import reading

LOG = """step 1 loss 2.0
[rank1]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)
[rank3]: Traceback (most recent call last):
[rank3]:   File "/w/train.py", line 12, in loss
[rank3]:     f(x)
[rank3]: KeyError: 'x'
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log with a root in its middle."""
    path = tmp_path / "job.out"
    path.write_text(LOG)
    return path


def test_a_log_is_diagnosed_in_words(log: Path) -> None:
    """The root with its place, whose fault it is, what to do, and what followed."""
    done = CliRunner().invoke(command, [str(log)])
    assert done.exit_code == 0, done.output
    assert "key: A key is missing." in done.output
    assert f"{log}:6, in train.py:loss" in done.output
    assert "the program, its data or its settings" in done.output
    assert "comm_timeout" in done.output


def test_tools_get_the_same(log: Path) -> None:
    """As JSON, with a signature."""
    told = json.loads(CliRunner().invoke(command, [str(log), "--json"]).stdout)
    assert (told["category"], told["blame"], told["root"]["line"]) == ("key", "program", 6)
    assert told["signature"] == "key: KeyError: 'x' at train.py:loss"
    assert [finding["rule"] for finding in told["followed"]] == ["nccl-watchdog"]


def test_a_log_that_says_nothing_ends_with_one(tmp_path: Path) -> None:
    """It says so, and where else to look; any bytes will do."""
    path = tmp_path / "job.out"
    path.write_bytes(b"\x00\xff\xfe" * 1000 + b"step 1\r step 2\r")
    done = CliRunner().invoke(command, [str(path)])
    assert done.exit_code == 1
    assert "Nothing in the log says what happened." in done.output


def test_a_sites_rules_are_used_and_checked(tmp_path: Path, log: Path) -> None:
    """A rule that does not recognise its own example is named with its line."""
    rules = tmp_path / "site.yaml"
    text = "rules:\n- {id: ours, category: storage, pattern: 'step 1', source: us, examples: ['step 1', '%s']}\n"
    rules.write_text(text % "step 12")
    done = CliRunner().invoke(command, ["rules", "--check", str(rules)])
    assert (done.exit_code, done.output) == (0, f"{rules}: 1 rules, all right\n")
    told = json.loads(CliRunner().invoke(command, [str(log), "--json", "--rules", str(rules)]).stdout)
    assert told["root"]["rule"] == "ours"
    rules.write_text(text % "stop 1")
    done = CliRunner().invoke(command, ["rules", "--check", str(rules)])
    assert done.exit_code == 2
    assert f"{rules}:2: the example 'stop 1' is not recognised by ours" in done.output
    done = CliRunner().invoke(command, [str(log), "--rules", str(tmp_path / "none.yaml")])
    assert done.exit_code == 2


def test_all_rules_are_listed() -> None:
    """Categories for people, rules for tools."""
    assert "gpu_oom (program)" in CliRunner().invoke(command, ["rules"]).output
    rules = json.loads(CliRunner().invoke(command, ["rules", "--json"]).stdout)
    assert {"id", "pattern", "category", "source", "examples"} <= set(rules[0])


def test_a_log_is_shown_on_a_page(log: Path) -> None:
    """What is news, with the traceback whole, and never longer than asked for."""
    steps = "".join(f"[rank{n % 4}]: step {n // 4} loss {n / 7:.4f} lr 1e-4\n" for n in range(400))
    log.write_text(steps + LOG)
    done = CliRunner().invoke(command, ["page", str(log)])
    assert done.exit_code == 0, done.output
    assert "KeyError: 'x'" in done.output
    assert 'File "/w/train.py", line 12, in loss' in done.output
    assert len(done.output.encode()) < 2000
    assert len(CliRunner().invoke(command, ["page", "--bytes", "300", str(log)]).output.encode()) <= 301


def test_a_large_log_is_compressed_first(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same root at the same place; what could not be read is said."""
    whole = json.loads(CliRunner().invoke(command, [str(log), "--json"]).stdout)
    steps = "".join(f"[rank{n % 4}]: step {n // 4} loss {n / 7:.4f} lr 1e-4\n" for n in range(4000))
    log.write_text(LOG + steps)
    monkeypatch.setattr(reading, "WHOLE_BYTES", 1000)
    told = json.loads(CliRunner().invoke(command, [str(log), "--json"]).stdout)
    assert (told["category"], told["root"]["place"]) == (whole["category"], whole["root"]["place"])
    assert told["root"]["text"].endswith("KeyError: 'x'")
    assert [finding["rule"] for finding in told["followed"]] == ["nccl-watchdog"]
