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
        assert set(case) - {"also"} == {"source", "category", "blame", "ambiguous", "root", "why", "log"}, path
        assert case["category"] in shipped().categories, path
        assert case["blame"] in [blame.value for blame in Blame], path
        assert any(case["root"].strip() in line for line in case["log"].splitlines()), path
        assert case["source"].startswith("https://"), path
        assert not case["ambiguous"] or case["blame"] == "either", path
    assert len({case["source"] for case in cases.values()}) == len({path.stem for path in FILES}) == len(FILES)


def test_other_lines_of_the_same_failure_stand_in_the_log_beside_the_root() -> None:
    """Each is a part of a line that does not count as the root already, and is long enough to tell it apart."""
    labelled = 0
    for path in FILES:
        case = yaml.safe_load(path.read_text())
        lines, root = case["log"].splitlines(), case["root"].strip()
        roots = [line for line in lines if root in line]
        assert "also" not in case or case["also"], f"{path}: leave an empty `also` out"
        for part in case.get("also", ()):
            labelled += 1
            assert len(part) >= 20, (path, part)
            assert not any(part in line for line in roots), f"{path}: part of the root line: {part}"
            others = [line for line in lines if part in line and not counted.same_line(root, line)]
            assert others, f"{path}: in no other line of the log: {part}"
    assert labelled >= 100


def test_another_line_of_the_same_failure_is_a_right_root() -> None:
    """It counts for the target; the stricter count beside it knows the labelled line only."""
    lines = ["[rank1]: KeyError: 'tokens'", "worker 1: no column 'tokens' in the data", "worker 1 ended"]
    case = counted.Case("made", lines, "program", "key", "KeyError: 'tokens'", False, ("no column 'tokens' in",))
    wrong = {}
    for line in lines:
        shares = counted.score([case], lambda _, line=line: counted.Answer("program", "key", line))
        wrong[line] = [shares[what].hits for what in ("root line wrong", counted.LABELLED_ONLY)]
    assert list(wrong.values()) == [[0, 0], [0, 1], [1, 1]]
    assert set(counted.MOST_WRONG) == set(shares) - {counted.LABELLED_ONLY}


@pytest.mark.parametrize(("half", "blame", "category", "root"), [("choose", 5, 5, 7), ("report", 12, 19, 23)])
def test_what_was_reached_stays(half: str, blame: int, category: int, root: int) -> None:
    """Per cent wrong, a little more than measured when the figures of docs/benchmarks.md were taken."""
    shares = counted.score(counted.read_cases(half), counted.ours)
    wrong = {what: 100 * share.hits / share.cases for what, share in shares.items()}
    assert wrong["blame wrong"] <= blame, counted.wrong(counted.read_cases("choose"))
    assert wrong["category wrong"] <= category
    assert wrong[counted.LABELLED_ONLY] <= root
    assert wrong["root line wrong"] <= wrong[counted.LABELLED_ONLY]
    assert wrong["program blamed on a node"] <= 2
