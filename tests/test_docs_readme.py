"""What README.md says is missing is missing, and what it says is there is there."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable

from documents import (
    PACKAGE,
    ROOT,
    options_of,
    section,
    text_of,
)

from slurm_robust.cli.main import COMMANDS
from slurm_robust.config.supervise import SuperviseConfig
from slurm_robust.nodecheck.engine import registry
from slurm_robust.nodewatch import nvml_watch, polls
from slurm_robust.policy.job import decide
from slurm_robust.supervise.incident.incident_handler import IncidentHandler
from slurm_robust.supervise.launch import srun_command


def uses(pattern: str, *parts: str) -> bool:
    """Whether the code in these folders or files of the package has such a text."""
    there = [PACKAGE / part for part in parts]
    files = [path for part in there for path in ([part] if part.is_file() else part.rglob("*.py"))]
    assert files, parts
    return any(re.search(pattern, path.read_text("utf-8")) for path in files)


MISSING: dict[str, Callable[[], bool]] = {
    "Nothing is done about it": lambda: uses(r"claim|decide\(|relaunch|requeue", "supervise/watch/slowness.py"),
    "Native stacks and GPU kernels are not looked at": lambda: uses(r'"--native"|cuda-gdb', "supervise"),
    "How much of a GPU's memory is free is looked at between jobs only": lambda: uses(r"nvml", "supervise"),
    "DCGM's\n  counters and policies, switches and the board's event log (IPMI) are not asked": lambda: uses(
        r"import (?:pydcgm|dcgm)|\[\"(?:dcgmi|ipmitool|ibnetdiscover)\"", "nodecheck"
    ),
    "They are not warmed up": lambda: uses(r"\bwarm_?up|preload", "daemon", "policy"),
    "Het jobs run unsupervised": lambda: "het_job" not in (PACKAGE / "policy/job/decide.py").read_text("utf-8"),
    "expedited requeue (25.11) is not used": lambda: uses(
        r"requeue=expedite", "slurm", "supervise", "daemon", "policy"
    ),
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
        "PyTorch's flight recorder": (PACKAGE / "localize/recorder/align.py").exists(),
        "NCCL's RAS": (PACKAGE / "localize/ras.py").exists(),
        "reported by slurmstepd where the SPANK plugin is installed": (PACKAGE / "supervise/agent/exits.py").exists(),
        "that still hold a GPU": (PACKAGE / "supervise/agent/gpu_holders.py").exists(),
        "the full stage also computes on the GPUs": bool(registry.GROUPS["torch"]),
        "`dcgmi diag` is run by `srobust test`": uses(r"dcgmi.*diag", "stoptime/node_tools.py"),
        "checked in full when they join": (PACKAGE / "daemon/controllers/standby/standby_check.py").exists(),
    }.items():
        assert sentence in text, sentence
        assert there, sentence


def test_what_the_test_script_runs_is_said() -> None:
    """What takes long, and the variants, have commands of their own; CI runs all but the variants."""
    assert 'choice="not variant and not long"' in text_of("scripts/test")
    tried = section("README.md", "Try it")
    assert "./scripts/test --rest" in tried
    assert "./scripts/test-variants" in tried
    assert 'scripts/test -m "not variant"' in text_of(".ci/run")
    missing = [
        line for line in text_of("tests/long_tests.txt").splitlines() if line[0] != "#" and not (ROOT / line).exists()
    ]
    assert missing == []
    for page in ("README.md", "CONTRIBUTING.md", "scripts/test"):
        assert not re.search(r"runs them all|all tests\n", text_of(page)), page


def test_what_a_road_needs_is_said() -> None:
    """Tests need PyTorch, time, and a step of ours; the supervisor says so where one of them is missing."""
    rows = dict(
        re.findall(r"^\| (\w[\w ]*) \| .* \| (.*) \|$", section("README.md", "Roads back to training"), re.MULTILINE)
    )
    assert "restart in place" in rows
    for words in ("PyTorch", "`ladder.budget_s`", "a step that `srobust run` started"):
        assert words in rows["test"]


def test_protocols_have_the_modules_that_the_architecture_names() -> None:
    """Each that is named exists; the one without a module of messages is named as such."""
    text = section("docs/architecture.md", "Who starts and calls what")
    named = re.findall(r"`((?:supervise|checkpoint)/[\w/]*messages\.py)`", text)
    assert len(named) == 3
    assert all((PACKAGE / name).is_file() for name in named)
    assert "Those of stop-time tests do not" in text
    assert not list((PACKAGE / "stoptime").glob("*messages*")), "then the sentence is to go"


def test_when_stacks_are_taken_and_how_late_nodes_tell() -> None:
    """The first page promises no more than the code does."""
    first = section("README.md", "slurm_robust")
    for handler in (IncidentHandler.bad_loss, IncidentHandler.slow):
        assert ".capture" not in inspect.getsource(handler), "then it says so: a bad loss, a slow training"
    assert "Where stacks would\n  tell nothing it takes none: a bad loss, a slow training" in first
    assert (polls.RDMA_EVERY_S, nvml_watch.EVERY_S, polls.NODE_EVERY_S) == (2.0, 10.0, 30.0)
    assert "within two seconds what the kernel logs, a lost link or port; within 10 s what only NVML shows" in first
    assert "within 30 s the rest" in first
    assert "changes nothing" not in first
    assert srun_command.first_launch(srun_command.parse(["a"]))[1:3] == ["--kill-on-bad-exit=0", "--wait=0"]
    assert "adds two options and some variables" in first


def test_how_many_attempts_are_made_is_said() -> None:
    """Three, and at most twice as many where failures have nothing in common; wherever it is told."""
    assert "2 * limit" in inspect.getsource(decide._fruitless)
    assert SuperviseConfig().fruitless_attempts == 3
    for page in ("README.md", "docs/engineer.md", "docs/operations.md", "docs/spank.md"):
        told = re.findall(r"hree attempts( in a row)?( without a new step)?([^|;:]{0,60})", text_of(page))
        assert told, page
        assert all("at most six" in after for *_, after in told), page


def test_what_over_evict_does_is_no_first_thing() -> None:
    """It is a rung of the ladder, which begins when the hang is due."""
    rows = re.findall(r"^\| `ladder.over_evict` .*$", text_of("docs/configuration.md"), re.MULTILINE)
    assert "first rung" in rows[0]
    assert "at once" not in rows[0]
