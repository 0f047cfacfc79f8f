"""Commands on a host whose clock is not slurmctld's."""

from __future__ import annotations

import time

from slurm_robust.slurm.arguments import in_slurms_time, sooner
from slurm_robust.slurm.client import JobChanges
from slurm_robust.slurm.parse import as_of_s, parse_settings


def test_now_means_slurmctlds_time() -> None:
    """Only whole words that Slurm reads as times are changed, and none if the clocks agree."""
    words = ["StartTime=now", "EndTime=now+60", "--deadline=now+3minutes", "Comment=StartTime=now", "Duration=10"]
    ahead = ["StartTime=now-119", "EndTime=now-59", "--deadline=now+61", "Comment=StartTime=now", "Duration=10"]
    assert in_slurms_time(words, 119) == ahead
    assert in_slurms_time(["StartTime=now+1"], -119) == ["StartTime=now+120"]
    assert in_slurms_time(words, 0) == words


def test_no_start_is_put_off() -> None:
    """Scontrol tells no time before its host's `now`: where the job may start sooner, none is told."""
    changes: JobChanges = {"exclude": "n1", "start_now": True}
    soon_s = time.time()
    assert sooner(changes, soon_s, 8) == ["ExcNodeList=n1"]
    assert sooner(changes, soon_s + 100, 8) == ["ExcNodeList=n1", "StartTime=now"]
    assert sooner(changes, soon_s, 0) == sooner(changes, soon_s, -8) == ["ExcNodeList=n1", "StartTime=now"]


def test_slurmctld_tells_its_time() -> None:
    """In the first line of its settings; a Slurm that prints another form tells none."""
    assert as_of_s(parse_settings("Configuration data as of 1795768277\nClusterName = c\n")) == 1795768277
    assert as_of_s(parse_settings("Configuration data as of 2026-11-27T08:31:17\nClusterName = c\n")) is None
