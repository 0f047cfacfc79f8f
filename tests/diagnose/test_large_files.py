"""A large log is read in one pass: the rules see few of its lines, and the diagnosis is the one of all lines."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_robust.diagnose.findings import Matcher, findings, matcher
from slurm_robust.diagnose.hints import PatternBranch
from slurm_robust.diagnose.large_files import scan
from slurm_robust.diagnose.root import diagnose
from slurm_robust.diagnose.rulebook import shipped

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import diagnose as benchmark  # type: ignore[import-not-found,no-redef]

CASES = benchmark.read_cases("choose")
MATCHER = matcher()
LINES = sorted({line for case in CASES for line in case.lines})


def both(folder: Path, lines: list[str]) -> tuple[object, object]:
    """What is said of a file of these lines: as a large one, and of all its lines."""
    path = folder / "job.log"
    path.write_text("\n".join(lines), encoding="utf-8")
    scanned = scan([path], MATCHER)
    assert [scanned.lines[one.number][2].strip()[:40] for one in scanned.found if not one.in_traceback] == [
        one.text[:40] for one in scanned.found if not one.in_traceback
    ]
    large, whole = diagnose(scanned.found), diagnose(findings(lines))
    return (large.category.name, large.blame, large.root and large.root.text), (
        whole.category.name,
        whole.blame,
        whole.root and whole.root.text,
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_large_log_has_the_diagnosis_of_its_lines(case: benchmark.Case, tmp_path: Path) -> None:
    """Whichever of its lines were not read by the rules."""
    lines = [line.replace("\r", " ") for line in case.lines]
    large, whole = both(tmp_path, lines)
    assert large == whole


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(LINES), max_size=60))
def test_any_lines_in_any_order_are_read_alike(tmp_path: Path, lines: list[str]) -> None:
    """Lines of many failures in one file: the root is the same."""
    large, whole = both(tmp_path, [line.replace("\r", " ") for line in lines])
    assert large == whole


class Counting(Matcher):
    """Counts the patterns that are searched."""

    searches = 0

    def _matches(self, branch: PatternBranch, text: str) -> bool:
        self.searches += 1
        return super()._matches(branch, text)


def test_the_work_grows_with_the_log_and_no_faster(tmp_path: Path) -> None:
    """All lines differ and have words of errors: two patterns a line are searched, and what is kept is bounded."""
    searches = []
    for size_bytes in (100_000, 400_000):
        path = tmp_path / f"{size_bytes}.log"
        lines = benchmark.write_hostile(path, size_bytes)
        matcher = Counting(shipped())
        scanned = scan([path], matcher)
        assert matcher.searches <= 2 * lines
        assert scanned.read == {str(path): lines}
        assert len(scanned.lines) <= 8100
        searches.append(matcher.searches)
    assert searches[1] <= 4.4 * searches[0]


def test_lines_that_only_have_numbers_like_a_rule_are_not_read(tmp_path: Path) -> None:
    """Ids are in each line: they do not send it to the rules."""
    path = tmp_path / "job.log"
    dice = random.Random(9)
    with path.open("w") as file:
        for n in range(3000):
            file.write(
                f"worker {n % 512}: retry {n} failed: request id {dice.getrandbits(64):016x} timed out after 9 s\n"
            )
    matcher = Counting(shipped())
    scanned = scan([path], matcher)
    assert scanned.found == []
    assert len(scanned.lines) <= 30
    assert matcher.searches <= 1500


def test_a_fault_within_much_else_is_found_at_its_line(tmp_path: Path) -> None:
    """Behind a flood of warnings, with the ranks' lines mixed; other digits of a known line may mean another fault."""
    path = tmp_path / "job.log"
    flood = [f"[rank{n % 8}]: warning: retry {n} of the checkpoint write failed" for n in range(5000)]
    xids = [f"NVRM: Xid (PCI:0000:3b:00): 31, pid={n}, MMU Fault" for n in range(50)]
    fault = "NVRM: Xid (PCI:0000:3b:00): 79, pid=7, GPU has fallen off the bus."
    path.write_text("\n".join([*flood, *xids, fault, *flood]))
    scanned = scan([path], MATCHER)
    root = diagnose(scanned.found).root
    assert root is not None
    assert scanned.lines[root.number] == (str(path), 5051, fault)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    """Others are read all the same."""
    path = tmp_path / "job.log"
    path.write_text("RuntimeError: CUDA error: unspecified launch failure\n")
    scanned = scan([tmp_path / "none.log", path], MATCHER)
    assert len(scanned.problems) == 1
    assert "none.log: cannot be read" in scanned.problems[0]
    assert [one.category.name for one in scanned.found] == ["cuda_error"]
