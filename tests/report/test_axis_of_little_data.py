"""The time axis of a page: as long as there is something on it, and no longer than the window."""

from __future__ import annotations

import pytest
from report_rows import attempt_row, facts_of

from slurm_robust.daemon.store.attempt_ledger import PoolSize
from slurm_robust.report.figures.all_figures import figures_of
from slurm_robust.report.pages.sections.standby import standby_section
from slurm_robust.report.pages.sections.time_spent import time_section
from slurm_robust.report.pages.sections.trainings import trainings_section

MINUTE_S, DAY_S = 60.0, 86400.0


def test_twenty_minutes_of_data_fill_the_axis_of_a_month() -> None:
    """It begins a little before the data; the window of the report stays what it is."""
    end_s = 30 * DAY_S
    attempt = attempt_row(end_s - 20 * MINUTE_S, None)
    facts = facts_of(attempts=(attempt,), pools=(PoolSize(end_s - 20 * MINUTE_S, "s", "p", 1, ("n9",)),))
    figures = figures_of(facts)
    plots = [make(facts, figures).plot for make in (time_section, trainings_section, standby_section)]
    for plot in plots:
        assert plot is not None
        assert end_s - 25 * MINUTE_S < plot.from_s < end_s - 20 * MINUTE_S  # type: ignore[union-attr]


@pytest.mark.parametrize("begin_s", [DAY_S, 20 * DAY_S])
def test_more_data_has_the_whole_window(begin_s: float) -> None:
    """So that an empty half of it is seen."""
    facts = facts_of(attempts=(attempt_row(begin_s, None),))
    plot = trainings_section(facts, figures_of(facts)).plot
    assert plot is not None
    assert plot.from_s == facts.from_s  # type: ignore[union-attr]
