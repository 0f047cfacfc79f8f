"""The rate limit for texts from outside."""

from __future__ import annotations

from slurm_robust.daemon.rate_limit import RateLimit


def test_ration_is_bounded() -> None:
    """A flood of keys costs no memory, and a key gets its ration again after the window."""
    ration = RateLimit(2, 10.0, keys=8)
    assert [ration.take("a", at_s) for at_s in (0, 1, 2, 11, 12)] == [True, True, False, True, True]
    for number in range(100):
        ration.take(f"k{number}", 20)
    assert len(ration._used) == 8
