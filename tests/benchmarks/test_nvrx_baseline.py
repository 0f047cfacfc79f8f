"""The baseline that is asked in another interpreter, with a package of the same shape in its place."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import diagnose as counted  # noqa: E402 (benchmarks are no package)
import nvrx  # noqa: E402 (the same)

PACKAGE = """
from types import SimpleNamespace
def build_l0_bundle(path):
    lines = open(path).read().splitlines()
    for number, line in enumerate(lines, 1):
        if "Error" in line:
            found = SimpleNamespace(failure_class="observed_exception", line=number)
            return SimpleNamespace(deterministic_primary_candidate=found)
    return SimpleNamespace(deterministic_primary_candidate=None)
"""


@pytest.fixture
def interpreter(tmp_path: Path) -> str:
    """A Python that has such a package."""
    folder = tmp_path / "nvidia_resiliency_ext" / "attribution" / "restart_agent"
    folder.mkdir(parents=True)
    (folder / "l0.py").write_text(PACKAGE)
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    script.chmod(0o755)
    return str(script)


def test_its_answer_becomes_a_blame_and_a_line(interpreter: str) -> None:
    """An exception counts once as the program's and once as undecided; no answer is no blame."""
    cases = [
        counted.Case("a", ["step 1", "KeyError: 'x'"], "program", "key", "KeyError: 'x'", ambiguous=False),
        counted.Case("b", ["nothing"], "either", "unknown", "nothing", ambiguous=True),
    ]
    program, undecided = counted.nvrx_ways(interpreter, cases).values()
    assert program(cases[0].lines) == ("program", "", "KeyError: 'x'")
    assert undecided(cases[0].lines) == ("either", "", "KeyError: 'x'")
    assert program(cases[1].lines) == ("either", "", "")
    shares = counted.score(cases, program)
    assert (shares["blame wrong"].hits, shares["root line wrong"].hits) == (0, 1)


def test_a_preemption_is_no_node_failure() -> None:
    """One class of its stands for both."""
    told = nvrx.NvrxAnswer("infra_policy_event", "CANCELLED DUE TO NODE FAILURE")
    assert nvrx.blame(told, "program") == "node"
    assert nvrx.blame(told._replace(line="CANCELLED DUE TO PREEMPTION"), "program") == "nobody"


def test_an_interpreter_without_it_is_said() -> None:
    """Which one, and what it said."""
    with pytest.raises(nvrx.NvrxError, match="No module named 'nvidia_resiliency_ext'"):
        nvrx.ask(sys.executable, [["x"]])
    with pytest.raises(nvrx.NvrxError, match="/no/such/python"):
        nvrx.ask("/no/such/python", [["x"]])
