"""A drain whose reason was changed, as after a repair, is one drain."""

from __future__ import annotations

from dataclasses import replace

from report_rows import DAY_S, HOUR_S, drain_row, facts_of

from slurm_robust.report.figures.failures import whole_drains
from slurm_robust.report.figures.false_alarms import false_alarms
from slurm_robust.report.figures.node_events import node_histories
from slurm_robust.report.lemons import find_lemons, signals_of

FIRST = drain_row("n1", DAY_S, ended_at_s=DAY_S + 2 * HOUR_S)
AGAIN = drain_row("n1", DAY_S + 2 * HOUR_S, "srobust: XID 79, rebooted twice")


def test_it_counts_once_wherever_drains_are_counted() -> None:
    """It has not ended, it is one drain with one XID, and one failure of the node."""
    facts = facts_of(drains=(FIRST, AGAIN, drain_row("n2", DAY_S, ended_at_s=2 * DAY_S)))
    found = false_alarms(facts)
    assert (found.drains, found.ended_drains, found.open_drains) == (2, 1, 1)
    history = node_histories(facts)[0]
    assert (history.node, history.counts["drain"], history.xids[79], history.is_out) == ("n1", 1, 1, True)
    assert [signal.node for signal in signals_of(facts)] == ["n1", "n2"]
    assert find_lemons(facts).failures == 2


def test_it_was_for_nothing_where_its_end_says_so() -> None:
    """The row that ended it has the judgement: it is no evidence against the node."""
    facts = facts_of(drains=(FIRST, replace(AGAIN, ended_at_s=DAY_S + 3 * HOUR_S, reverted=True)))
    found = false_alarms(facts)
    assert (found.drains, found.ended_drains, found.reverted_drains) == (1, 1, 1)
    assert signals_of(facts) == []


def test_rows_that_cannot_be_true_stay_rows() -> None:
    """One that ends when it begins, and one that ends before."""
    rows = (drain_row("n1", 100.0, ended_at_s=100.0), drain_row("n2", 200.0, ended_at_s=100.0), drain_row("n2", 100.0))
    assert whole_drains(rows) == rows
