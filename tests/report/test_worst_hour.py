"""The worst hour of a window, which the page tells."""

from __future__ import annotations

from example_pages import view_of
from report_rows import HOUR_S, attempt_row

from slurm_robust.report.facts import Facts
from slurm_robust.report.pages.page import html


def test_a_short_hour_is_not_the_worst() -> None:
    """The seconds of the first start are no hour: it is told of once there was one."""
    for hours, told in ((0.5, False), (3, True)):
        end_s = HOUR_S + hours * HOUR_S
        attempt = attempt_row(HOUR_S, end_s, first_step_at_s=HOUR_S + 300, first_new_step_at_s=HOUR_S + 300)
        facts = Facts(0.0, end_s, end_s, attempts=(attempt,))
        assert ("The worst single hour had an ETTR of 91.7 %" in html(view_of(facts))) == told
