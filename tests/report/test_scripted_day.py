"""What the report says of a short day of faults on a real cluster, beside what the day's script knows."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from accounting_tools import need_accounting
from day_acts import CRASH, HANG
from scripted_day import day_on

from slurm_robust.report.figures.all_figures import figures_of


@pytest.mark.slurm
def test_the_report_of_a_hang_and_a_crash_tells_what_the_script_knows() -> None:
    """Counts exactly; times to two seconds, since Slurm's are whole ones; steps to a tenth. The parts of ETTR sum."""
    need_accounting()
    with tempfile.TemporaryDirectory(prefix="dc-test-") as folder, day_on(Path(folder) / "c", 5) as day:
        Path(folder).chmod(0o755)
        day.unsupervised("broken", "exit 3", "FAILED")
        day.pool_is_full()
        played = [day.play(act) for act in (HANG, CRASH)]
        for one in played:
            day.strike(one)
        for one in played:
            day.ends(one)
        facts = day.facts()
        compared = day.compare(facts, figures_of(facts))
    wrong = [row.line() for row in compared if not row.well]
    told = [f"{row.job}: {row.road} {row.outcome}: {row.verdict} {row.plan}" for row in facts.incidents]
    assert not wrong, "\n".join([*wrong, *told])
    assert len(compared) > 40
    assert not facts.doubts
