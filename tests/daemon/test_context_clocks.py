"""The daemon's clock beside slurmctld's: measured by its answers, which are whole seconds and take a while."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_slurm import FakeSlurm

from slurm_robust.config.site import parse
from slurm_robust.core.model import Mode
from slurm_robust.daemon.context import DaemonContext
from slurm_robust.daemon.store.journal import Journal


class Host:
    """A host's clock, and the daemon's context there."""

    def __init__(self, journal: Journal) -> None:
        self.at_s, self.slurm = 5000.0, FakeSlurm()
        clock = lambda: self.at_s  # noqa: E731
        self.context = DaemonContext(parse(""), self.slurm, journal, account="root", mode=Mode.ACT, clock=clock)

    def asks(self, ahead_s: float, took_s: float = 0.0) -> int:
        """Slurmctld is asked at a moment in which this host is so far ahead; returns what was measured."""
        asked_s = self.context.now_s()
        true_s = self.at_s - ahead_s + took_s / 2
        self.at_s += took_s
        self.context.compare_clocks(int(true_s), asked_s)
        return self.context.clock_ahead_s


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """One host."""
    journal = Journal.open(tmp_path)
    yield Host(journal)
    journal.close()


def test_clocks_that_agree(host: Host) -> None:
    """Parts of a second, a slow answer and up to five seconds are no difference."""
    for ahead_s, took_s in ((0.0, 0.0), (0.4, 0.0), (0.0, 9.0), (-4.0, 0.1), (4.0, 0.1)):
        host.at_s += 300.3
        assert host.asks(ahead_s, took_s) == 0
    assert not host.context.troubles
    host.context.compare_clocks(None, host.context.now_s())
    assert host.slurm.clock_ahead_s == 0


@pytest.mark.parametrize("ahead_s", [119, -119, 6])
def test_clocks_that_differ(host: Host, ahead_s: int) -> None:
    """The daemon goes by slurmctld's, its commands too; status says it, until the clock is right again."""
    assert host.asks(ahead_s, 0.2) == pytest.approx(ahead_s, abs=1)
    assert host.context.now_s() == pytest.approx(host.at_s - ahead_s, abs=1)
    assert host.slurm.clock_ahead_s == host.context.clock_ahead_s
    (sentence,) = host.context.troubles.values()
    assert ("ahead of" if ahead_s > 0 else "behind") in sentence
    assert sentence.endswith(": timedatectl")
    before = host.context.clock_ahead_s
    host.at_s += 300.7
    assert host.asks(ahead_s) == before
    assert host.asks(0.2) == 0
    assert not host.context.troubles
