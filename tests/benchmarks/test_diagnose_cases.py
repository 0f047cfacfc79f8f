"""The labelled failures are well formed, and the program that counts them does not lose what was reached."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import diagnose as counted  # noqa: E402 (benchmarks are no package)

from slurm_robust.diagnose.rulebook import shipped  # noqa: E402
from slurm_robust.diagnose.taxonomy import Blame  # noqa: E402

FILES = sorted((ROOT / "benchmarks" / "causes").glob("*/*.yaml"))


def test_each_case_is_labelled_and_names_its_source() -> None:
    """Known blame and category; the root stands in the log; no source and no name twice."""
    assert len(FILES) >= 300
    cases = {path: yaml.safe_load(path.read_text()) for path in FILES}
    for path, case in cases.items():
        assert set(case) == {"source", "category", "blame", "ambiguous", "root", "why", "log"}, path
        assert case["category"] in shipped().categories, path
        assert case["blame"] in [blame.value for blame in Blame], path
        assert any(case["root"].strip() in line for line in case["log"].splitlines()), path
        assert case["source"].startswith("https://"), path
        assert not case["ambiguous"] or case["blame"] == "either", path
    assert len({case["source"] for case in cases.values()}) == len({path.stem for path in FILES}) == len(FILES)


@pytest.mark.parametrize(("half", "blame", "category", "root"), [("choose", 10, 14, 12), ("report", 17, 24, 25)])
def test_what_was_reached_stays(half: str, blame: int, category: int, root: int) -> None:
    """Per cent wrong, a little more than measured when the figures of docs/benchmarks.md were taken."""
    shares = counted.score(counted.read_cases(half), counted.ours)
    wrong = {what: 100 * share.hits / share.cases for what, share in shares.items()}
    assert wrong["blame wrong"] <= blame, counted.wrong(counted.read_cases("choose"))
    assert wrong["category wrong"] <= category
    assert wrong["root line wrong"] <= root
    assert wrong["program blamed on a node"] <= 2
