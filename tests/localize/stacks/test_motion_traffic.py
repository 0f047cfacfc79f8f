"""How much a rank moved over TCP between two captures of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from localize_scenes import USER, process, rank

from slurm_robust.localize.evidence import CapturedProcess
from slurm_robust.localize.stacks.motion import traffic_bytes_per_s


def of(net_bytes: int, pid: int = 1, state: str = "S") -> CapturedProcess:
    """A process with this figure."""
    return replace(process(USER), pid=pid, net_bytes=net_bytes, state=state)


@pytest.mark.parametrize(
    ("before", "after", "rate"),
    [
        ([of(1000)], [of(1000)], 0.0),
        ([of(1000)], [of(6000)], 1000.0),
        ([of(1000), of(50, pid=2)], [of(6000), of(550, pid=2)], 1100.0),
        ([of(1000)], [of(1000), of(500, pid=2)], 100.0),
        ([of(1000), of(500, pid=2)], [of(1000)], 0.0),
        ([of(1000), of(-1, pid=2)], [of(1000), of(-1, pid=2, state="Z")], 0.0),
        ([of(1000), of(-1, pid=2)], [of(6000), of(-1, pid=2)], None),
        ([of(-1)], [of(6000)], None),
        ([of(1000)], [of(-1)], None),
        ([of(1000)], [of(10)], None),
        ([of(1000)], [], None),
        ([], [of(1000)], 200.0),
    ],
)
def test_the_traffic_of_a_rank(before: list[CapturedProcess], after: list[CapturedProcess], rate: float | None) -> None:
    """All its processes together; unknown if one of them is, or if it was counted from another beginning."""
    assert traffic_bytes_per_s(rank(0, *before), rank(0, *after), 5.0) == rate


def test_no_time_between_two_captures_gives_no_rate() -> None:
    """Two nodes' captures may carry one time."""
    assert traffic_bytes_per_s(rank(0, of(1)), rank(0, of(2)), 0.0) is None
