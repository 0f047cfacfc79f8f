"""Facts and figures as the view of a report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import median

from slurm_robust.report.characterise.characterisation import CharacterisationOptions, characterise
from slurm_robust.report.facts import Facts
from slurm_robust.report.figures.all_figures import Figures
from slurm_robust.report.figures.ettr import LOST
from slurm_robust.report.figures.failures import is_failure
from slurm_robust.report.figures.reliability import time_back_s
from slurm_robust.report.lemons import find_lemons
from slurm_robust.report.pages.formats import count, share
from slurm_robust.report.pages.sections.failures import alarms_section, causes_section, nodes_section
from slurm_robust.report.pages.sections.hours import hours_unit
from slurm_robust.report.pages.sections.jobs import compared_section, hours_section, jobs_section
from slurm_robust.report.pages.sections.reliability import reliability_section
from slurm_robust.report.pages.sections.restarts import restarts_section
from slurm_robust.report.pages.sections.standby import standby_section
from slurm_robust.report.pages.sections.time_spent import expected_section, time_section
from slurm_robust.report.pages.sections.trainings import outcome_of, trainings_section
from slurm_robust.report.pages.view import BigNumber, ReportSection, ReportView, Unit

_WITHOUT_JOURNAL = frozenset({"jobs", "hours", "compared"})
"""Sections that Slurm's accounting answers."""


def report_view(
    facts: Facts,
    figures: Figures,
    scope: str = "",
    offset_s: int = 0,
    job_types: Mapping[str, str] | None = None,
) -> ReportView:
    """Return the whole report, question by question.

    Args:
        facts: The facts, already narrowed to the scope.
        figures: `figures_of` these facts.
        scope: The job or user that the facts are narrowed to, in words; empty for everything.
        offset_s: Local time minus UTC.
        job_types: The site's patterns for job names; if empty, the package's.
    """
    ran = characterise(facts, CharacterisationOptions(job_types or None, offset_s))
    sections = (
        time_section(facts, figures),
        trainings_section(facts, figures),
        causes_section(facts, figures),
        restarts_section(figures),
        nodes_section(figures, find_lemons(facts)),
        reliability_section(figures),
        expected_section(figures),
        *(() if scope else (standby_section(facts, figures),)),
        alarms_section(figures),
        jobs_section(ran),
        hours_section(ran, offset_s),
        *(() if scope else (compared_section(ran, figures),)),
    )
    if not facts.journal_read:
        sections = tuple(map(_unknown, sections))
    return ReportView(
        title=f"How did {scope or 'the cluster'} do?",
        cluster=facts.cluster,
        from_s=facts.from_s,
        to_s=facts.to_s,
        made_at_s=facts.read_at_s,
        numbers=_numbers(facts, figures),
        sections=sections,
        scope=scope,
        offset_s=offset_s,
        doubts=facts.doubts if scope else (*facts.doubts, *figures.sentences),
    )


def _unknown(section: ReportSection) -> ReportSection:
    """Return the section with "not known" for its answer "nothing" or "none", if the journal was not read."""
    has_rows = section.table is not None and section.table.rows
    if has_rows or section.plot is not None or section.key in _WITHOUT_JOURNAL:
        return section
    return replace(section, answer="Not known: the daemon's journal was not read.")


def _numbers(facts: Facts, figures: Figures) -> tuple[BigNumber, ...]:
    """Return the numbers that the payers of the cluster ask for first."""
    time, costs = figures.time, figures.costs
    open_now = sum(outcome_of(one) == "open" for one in facts.incidents)
    lost = sum((time.shares or {}).get(what, 0.0) for what in LOST)
    back = [s for i in facts.incidents if is_failure(i) and (s := time_back_s(i)) is not None]
    of_all = f"{share(lost)} of the trainings' time" if time.shares else "no training ran"
    under_way = f"{count(open_now, 'of them', 'of them')} under way" if open_now else ""
    trained = f"of the time of {count(len(figures.trainings), 'training')}"
    return (
        BigNumber("ettr", "ETTR", time.ettr, Unit.SHARE, trained if time.ettr is not None else "no steps were seen"),
        BigNumber(
            "incidents", "incidents", len(facts.incidents) if facts.journal_read else None, Unit.COUNT, under_way
        ),
        BigNumber("lost_hours", "lost to failures", costs.total_hours, hours_unit(costs.unit), of_all),
        BigNumber(
            "back_median_s", "median time back", median(back) if back else None, Unit.SECONDS, "fault to first new step"
        ),
    )
