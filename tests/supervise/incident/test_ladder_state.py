"""What the supervisor finds out for the ladder: how many nodes could take the place of a whole group."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from supervised import World

from slurm_robust.slurm.client import Reservation
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.supervise.incident.ladder_state import standby_nodes


@pytest.mark.parametrize(("over_evict", "count"), [(True, 3), (False, 0)])
def test_standby_nodes_are_those_of_the_sites_pools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, over_evict: bool, count: int
) -> None:
    """Other reservations do not count, and nobody is asked where no group is left."""
    session = World(tmp_path / "story", ladder={"over_evict": over_evict}).session
    pools = [
        Reservation("srobust-standby-main-1", "n[7-8]"),
        Reservation("srobust-standby-big-2", "n[8-9]"),
        Reservation("maintenance", "n[1-6]"),
    ]
    monkeypatch.setattr(session.job.client, "reservations", lambda: pools, raising=False)
    assert asyncio.run(standby_nodes(session)) == count


def test_a_slurm_that_does_not_answer_has_no_standby_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then no healthy node is left for a group."""
    session = World(tmp_path / "story", ladder={"over_evict": True}).session

    def away() -> list[Reservation]:
        raise SlurmError("slurmctld does not answer")

    monkeypatch.setattr(session.job.client, "reservations", away, raising=False)
    assert asyncio.run(standby_nodes(session)) == 0
