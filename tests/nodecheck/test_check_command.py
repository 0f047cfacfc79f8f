from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from slurm_robust.nodecheck.catalogue import explain
from slurm_robust.nodecheck.engine import registry
from slurm_robust.nodecheck.engine.finding import Finding, NodeReport, Result, Status
from slurm_robust.nodecheck.engine.isolate import Task, run_all
from slurm_robust.nodecheck.stages import command
from slurm_robust.nodecheck.stages.command import main

DIRECT = [sys.executable, "-m", "slurm_robust.nodecheck"]
CLI = [sys.executable, "-m", "slurm_robust.cli.main", "check"]
XID_79 = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, GPU has fallen off the bus.\n"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A robust.yaml whose kernel log and state are a node's own files."""
    config = tmp_path / "robust.yaml"
    config.write_text(f"nodecheck: {{kmsg: {tmp_path}/%n.kmsg, cache_dir: {tmp_path}/cache/%n, deadline_s: 30}}\n")
    (tmp_path / "n1.kmsg").write_text("Linux version 6.1.0\n")
    return config


@pytest.mark.parametrize("entry", [DIRECT, CLI])
def test_both_entries_are_the_same_command(entry: list[str], site: Path) -> None:
    """`srobust check` and the prolog's way to it: same arguments, same JSON, same exit codes."""
    env = {"SROBUST_CONFIG": str(site), "SLURMD_NODENAME": "n1", "PYTHONPATH": str(Path(__file__).parents[2])}

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*entry, *args], env=env, capture_output=True, text=True, timeout=60, check=False)

    done = run("--only", "xid,memory", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    said = json.loads(done.stdout)
    assert (said["node"], said["verdict"], [c["name"] for c in said["checks"]]) == ("n1", "fit", ["xid", "memory"])
    with (site.parent / "n1.kmsg").open("a") as log:
        log.write(XID_79)
    done = run("--stage", "prolog")
    assert done.returncode == 1
    assert "n1: unfit (prolog)" in done.stdout
    assert "XID 79" in done.stdout
    assert run("--clear-xid", "all").stdout == "n1: 1 latched XID cleared for all\n"
    assert run("--stage", "prolog").returncode == 0
    named = run("--node", "n2", "--only", "memory", "--json")
    assert json.loads(named.stdout)["node"] == "n2"
    assert run("--node", "../n2").returncode == 2
    assert run("--only", "xd").returncode == 2
    assert run("--stage", "never").returncode == 2
    assert "usage: srobust check" in run("--help").stdout


def test_a_saved_log_is_looked_at_and_nothing_is_remembered(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--kmsg judges that file alone, every time, and leaves the node's own state as it is."""
    saved = site.parent / "saved.log"
    saved.write_text(XID_79)
    for _ in range(2):
        assert main(["--config", str(site), "--only", "xid", "--kmsg", str(saved)], {"SLURMD_NODENAME": "n1"}) == 1
    assert main(["--config", str(site), "--only", "xid"], {"SLURMD_NODENAME": "n1"}) == 0
    assert "XID 79" in capsys.readouterr().out


def test_what_is_wrong_stands_first_and_what_is_not_there_once(capsys: pytest.CaptureFixture[str]) -> None:
    """On call, nobody looks for one line among seventy; the JSON keeps the order of the checks."""
    said = [
        ("memory", Finding(Status.PASS, "ok", "2000 MiB")),
        ("gpu_ecc", Finding(Status.SKIP, "no_driver", "no driver is loaded")),
        ("tasks", Finding(Status.WARN, "load", "load 18", "look who it is")),
        ("clock", Finding(Status.UNKNOWN, "x", "no answer")),
        ("gpu_rows", Finding(Status.SKIP, "no_driver", "no driver is loaded")),
        ("xid", Finding(Status.FAIL, "xid_79", "XID 79", "drain")),
    ]
    report = NodeReport("n1", "full", tuple(Result(name, finding) for name, finding in said))
    command._print(report, as_json=False)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in lines] == ["n1:", "fail", "→", "unknown", "warn", "→", "pass", "skip"]
    assert " ".join(lines[-1]) == "skip no driver is loaded: gpu_ecc, gpu_rows"
    command._print(report, as_json=True)
    assert [check["name"] for check in json.loads(capsys.readouterr().out)["checks"]] == [name for name, _ in said]


def test_could_not_tell_is_3(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A driver, and a kernel log that is none: unknown, exit 3."""
    root = site.parent / "root"
    (root / "proc/driver/nvidia").mkdir(parents=True)
    args = ["--config", str(site), "--only", "xid", "--root", str(root), "--kmsg", str(root), "--json"]
    assert main(args, {}) == 3
    assert json.loads(capsys.readouterr().out)["verdict"] == "unknown"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nodecheck: {deadline_s: -1}", "nodecheck.deadline_s"),
        ("nodecheck: {disable: [xd]}", "did you mean xid"),
        ("nodecheck: {options: {xd: {}}}", "did you mean xid"),
        ("nodecheck: {options: {xid: {fial: [79]}}}", "nodecheck.options.xid.fial: no such option"),
        ("nodecheck: {options: {memory: {expected_mb: much}}}", "'much' is no int"),
    ],
)
def test_a_wrong_configuration_is_2_and_names_the_key(
    text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is run; the message says which key."""
    config = tmp_path / "robust.yaml"
    config.write_text(text)
    assert main(["--config", str(config)], {}) == 2
    assert words in capsys.readouterr().err


def test_the_list_explains_every_check(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--list and --list --json name each check and each option with its source."""
    assert main(["--config", str(site), "--list"], {}) == 0
    text = capsys.readouterr().out
    assert main(["--config", str(site), "--list", "--json"], {}) == 0
    table = json.loads(capsys.readouterr().out)
    assert [entry["name"] for entry in table] == list(registry.NAMES)
    assert max(map(len, text.splitlines())) <= 100
    subjects = [line.strip("= ") for line in text.splitlines() if line.startswith("== ")]
    assert subjects == list(dict.fromkeys(registry.GROUP_OF.values()))
    text = " ".join(text.split())
    for entry in table:
        assert entry["question"] in text
        assert all(option["source"] and option["meaning"] in text for option in entry["options"].values())


def test_the_documentation_is_in_step_with_the_registry() -> None:
    """docs/checks.md ends with what the registry says, as `nodecheck.catalogue.explain` writes it."""
    text = (Path(__file__).parents[2] / "docs/checks.md").read_text()
    assert text.endswith(explain.as_markdown(registry.select("full")))


@pytest.mark.parametrize(
    "command",
    [
        [*DIRECT, "--stage", "prolog"],
        [*CLI, "--stage", "prolog"],
        pytest.param(CLI, marks=pytest.mark.variant),  # its checks on PyTorch take seconds
    ],
)
def test_the_way_of_the_prolog_loads_nothing_heavy(command: list[str], site: Path) -> None:
    """Neither torch nor aiohttp, rich or pyslurm; the prolog's entry not even click, nor our own Slurm client."""
    script = (
        "import runpy, sys\n"
        f"sys.argv = {command[2:]!r}\n"
        "try:\n    runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)\n"
        "except SystemExit as end:\n    print(end.code, file=sys.stderr)\n"
        "print(sorted(set(m.split('.')[0] for m in sys.modules)), 'slurm_robust.slurm' in sys.modules, file=sys.stderr)"
    )
    env = {"SROBUST_CONFIG": str(site), "SLURMD_NODENAME": "n1", "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    loaded = done.stderr.splitlines()[-1]
    assert done.stderr.splitlines()[0] == "0", done.stderr
    heavy = ["torch", "aiohttp", "rich", "pyslurm", "numpy"] + ([] if command[: len(CLI)] == CLI else ["click"])
    assert [name for name in heavy if f"'{name}'" in loaded] == []
    assert loaded.endswith("False")


def test_people_read_lines_of_a_hundred_columns(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where a sentence and its remedy are long."""
    with (site.parent / "n1.kmsg").open("a") as log:
        for slot in range(8):
            log.write(XID_79.replace("9b:00", f"{slot}b:00"))
    main(["--config", str(site), "--stage", "prolog"], {"SLURMD_NODENAME": "n1"})
    said = capsys.readouterr()
    assert "unfit" in said.out
    assert max(map(len, said.out.splitlines())) <= 100
    assert said.err == ""


def test_a_terminal_is_told_what_is_awaited() -> None:
    """The names that are still to answer, fewer and fewer, and nothing at the end."""
    seen: list[list[str]] = []
    tasks = {name: Task(partial(time.sleep, delay_s), 10.0) for name, delay_s in (("a", 0.0), ("b", 0.3))}
    run_all(tasks, lambda waiting: seen.append(list(waiting)))
    assert seen[0] == ["a", "b"]
    assert ["b"] in seen
    assert seen[-1] == []


def test_a_group_is_run_by_its_name(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--only network` is the 21 network checks; nodecheck.disable takes groups as well; a mistyped one is 2."""
    root = site.parent / "root"
    root.mkdir()
    assert main(["--only", "network", "--root", str(root), "--json"], {}) in (0, 1, 3)
    ran = [one["name"] for one in json.loads(capsys.readouterr().out)["checks"]]
    assert ran == [name for name, group in registry.GROUP_OF.items() if group == "network"]
    site.write_text("nodecheck: {disable: [network, gpu, torch]}\n")
    assert main(["--config", str(site), "--root", str(root), "--json"], {}) in (0, 1, 3)
    ran = [one["name"] for one in json.loads(capsys.readouterr().out)["checks"]]
    assert ran == [name for name, group in registry.GROUP_OF.items() if group == "host"]
    assert main(["--only", "netwrok"], {}) == 2
    assert "did you mean network" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("--on", {"--only"}),
        ("--only n", {"network", "numa", "neighbours", "network_sysctls", "nic_log"}),
        ("--only = t", {"torch", "tasks", "thermal"}),
        ("--only xid,tor", {"xid,torch"}),
        ("--stage p", {"prolog", "periodic"}),
    ],
)
def test_names_are_completed_at_a_tab(typed: str, offered: set[str]) -> None:
    """Options, and behind `--only` groups and checks; behind `--stage` the stages, as bash asks for them."""
    words = typed.split(" ")
    env = {**os.environ, "_SROBUST_COMPLETE": "bash_complete", "COMP_WORDS": f"srobust check {typed}"}
    env["COMP_CWORD"] = str(len(words) + 1)
    program = [sys.executable, "-c", "from slurm_robust.cli.main import main; main()"]
    done = subprocess.run(program, env=env, capture_output=True, text=True, check=True)
    assert {line.partition(",")[2] for line in done.stdout.splitlines()} == offered


def test_a_longer_deadline_can_be_asked_for(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At least so many seconds for each check, whatever the site or the check itself say."""
    seen: list[list[float | None]] = []
    whole = command.runner.run

    def run(checks: list[registry.Check], *rest: Any) -> NodeReport:
        seen.append([check.deadline_s for check in checks])
        return whole([], *rest)

    monkeypatch.setattr(command.runner, "run", run)
    for more in ([], ["--deadline", "60"], ["--deadline", "1"]):
        assert main(["--config", str(site), "--only", "xid,collective", *more], {}) == 0
    assert seen == [[30.0, 120.0], [60.0, 120.0], [30.0, 120.0]]
