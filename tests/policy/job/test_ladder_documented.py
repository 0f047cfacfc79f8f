"""docs/ladder.md: its tables are those of the code."""

from __future__ import annotations

import re
from dataclasses import replace

from documents import in_backticks, section, text_of
from ladder_situations import CODE, OFFERED, climb_to_the_end, hang

from slurm_robust.policy.job import open_rungs
from slurm_robust.policy.job.ladder import Rung
from slurm_robust.policy.job.open_rungs import TABLE, LadderRow

EXAMPLE = hang(apart_nodes=("n13", "n14"), code=CODE, ladder_options=replace(OFFERED, replay_possible=True))
NUMBERS = {2: "two", 3: "three", 4: "four", 5: "five"}


def rows(heading: str) -> list[list[str]]:
    """The cells of each row below the head of a section's table."""
    lines = [line for line in section("docs/ladder.md", heading).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def written_tests(row: LadderRow) -> str:
    """A row's tests as the page writes them."""
    sets = "; ".join(" and ".join(f"`{test.value}`" for test in tests) for tests in row.tests)
    return f"{sets}, first where the stacks stand apart" if row.apart_first else sets


def test_what_each_symptom_climbs_is_the_codes_table() -> None:
    """Each symptom once, in the code's order, with its tests and rungs in theirs."""
    written = [(cells[0], cells[2], cells[3]) for cells in rows("What each symptom climbs")]
    known = [
        (f"`{symptom.value}`", written_tests(row), ", ".join(f"`{rung.value}`" for rung in row.then))
        for symptom, row in TABLE.items()
    ]
    assert written == known


def test_each_rung_is_there_from_the_bottom() -> None:
    """All rungs of the code in their order, and each says what it costs, its bound and what follows."""
    written = rows("The rungs")
    assert [cells[0] for cells in written] == [f"`{rung.value}`" for rung in Rung]
    assert all(len(cells) == 5 and all(cells) for cells in written)


def test_the_numbers_of_the_page_are_the_codes() -> None:
    """Partners of the nodes that stand apart, and below how many nodes spares are tested."""
    cells = {row[0]: row[1] for row in rows("The rungs")}
    assert f"({NUMBERS[open_rungs._MIN_PARTNERS]} at least)" in cells["`test_apart`"]
    assert f"fewer than {NUMBERS[open_rungs._MIN_PAIRS]}" in cells["`test`"]


def test_the_example_is_what_plans_say() -> None:
    """Each sentence of the example stands in a plan of such a climb."""
    shown = re.findall(r"^\d\. \*(.+)\*$", section("docs/ladder.md", "An example"), re.MULTILINE)
    said = [plan.reason for plan in climb_to_the_end(EXAMPLE)[:-1]]
    assert len(shown) == len(said)
    for line, reason in zip(shown, said, strict=True):
        for part in line.split(" […] "):
            assert part in reason


def test_the_page_names_no_rung_that_there_is_not() -> None:
    """Words with an underscore are rungs, symptoms, or keys of the configuration."""
    words = {w for w in in_backticks(text_of("docs/ladder.md")) if re.fullmatch(r"[a-z]+_[a-z]+", w)}
    assert words <= {rung.value for rung in Rung} | {symptom.value for symptom in TABLE}
