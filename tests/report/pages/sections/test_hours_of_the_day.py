"""The report's section about the hours of the day says what is known, and no more."""

from __future__ import annotations

from dataclasses import replace

from report_rows import DAY_S, HOUR_S, facts_of, job_row

from slurm_robust.report.characterise.characterisation import CharacterisationOptions, characterise
from slurm_robust.report.facts import RanJob
from slurm_robust.report.pages.sections.jobs import hours_section
from slurm_robust.report.pages.view import PartsPlot, ReportSection

SIX_HOURS = replace(facts_of(), from_s=DAY_S, to_s=DAY_S + 6 * HOUR_S)


def section(*jobs: RanJob, offset_s: int = 0) -> ReportSection:
    """Of the first six hours of a day."""
    found = characterise(replace(SIX_HOURS, jobs=jobs), CharacterisationOptions(offset_s=offset_s))
    return hours_section(found, offset_s)


def test_an_hour_that_the_time_does_not_have_is_no_hour_without_use() -> None:
    """It has no bar, and a dash in the table."""
    made = section(job_row(DAY_S + 2 * HOUR_S, DAY_S + 3 * HOUR_S))
    assert isinstance(made.plot, PartsPlot)
    assert [(bar.label, bar.parts) for bar in made.plot.bars] == [(f"{n}:00", (8.0 * (n == 2),)) for n in range(6)]
    assert made.table is not None
    assert [row[1] for row in made.table.rows][6:] == [None] * 18


def test_small_use_is_not_called_none() -> None:
    """And none is said in other words."""
    assert "(0.50 nodes in the mean)" in section(job_row(DAY_S, DAY_S + HOUR_S / 2, gpus=0)).answer
    assert section(job_row(DAY_S, DAY_S)).answer == "No GPUs were in use."


def test_half_an_hour_of_a_zone_is_minutes() -> None:
    """As everywhere on the page."""
    made = section(job_row(DAY_S, DAY_S + HOUR_S), offset_s=19_800)
    assert made.table is not None
    assert made.table.caption == "Hours of the day, UTC+05:30"
