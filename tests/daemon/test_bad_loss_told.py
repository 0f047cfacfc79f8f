"""A training goes on with a loss that is not finite, and nothing is done about it: people are told, once an attempt."""

from __future__ import annotations

import pytest
from daemon_world import World
from snapshots import published

from slurm_robust.daemon import log_alerts
from slurm_robust.daemon.api.needs import needs
from slurm_robust.policy.job.live_loss import STEPS, LossTrend

NEED = "job 1 of ann goes on with a loss that is not finite: srobust incidents 1; scancel 1 (ends it)"


def lost() -> str:
    """What the supervisor says of such a loss."""
    trend = LossTrend()
    for step in range(STEPS):
        trend.take(step, float("nan"))
    return trend.lost


@pytest.mark.parametrize(
    ("mode", "road", "done"),
    [
        ("act", "alert_only", "nothing is done (alert only)"),
        ("observe", "restart_in_place", "nothing is done (the job only observes)"),
    ],
)
def test_it_is_told_by_a_message_and_by_status(world: World, mode: str, road: str, done: str) -> None:
    """Until the job makes another incident, or ends."""
    world.claim(1, (), "i1", state="watching", road=road, mode=mode, why=f"{lost()}. A restart would come to the same")
    world.run(5)
    query = "SELECT text FROM events WHERE what = 'training.bad_loss'"
    ((line,),) = world.journal.db.execute(query).fetchall()
    alert = log_alerts.alert_of(world.slurm.now_s, "training.bad_loss", line)
    assert alert is not None
    assert (alert.event, alert.severity, alert.job, alert.done) == ("bad_loss", "warning", "1", done)
    assert "loss nan at step 9" in alert.happened
    assert any(said == NEED for said in needs(published(world.daemon), world.slurm.now_s))
    world.run(30)
    assert len(world.journal.db.execute(query).fetchall()) == 1
    world.claim(1, (), "i2", state="watching", road="restart_in_place", mode="act", why="rank 1 died")
    world.run(5)
    assert not any("not finite" in said for said in needs(published(world.daemon), world.slurm.now_s))


def test_a_job_that_goes_back_to_a_checkpoint_needs_nobody(world: World) -> None:
    """Its own plan is carried out."""
    world.claim(1, (), "i1", state="watching", road="restart_in_place", mode="act", why=f"{lost()}; back to step 20")
    world.run(5)
    assert world.journal.db.execute("SELECT 1 FROM events WHERE what = 'training.bad_loss'").fetchone() is None
    assert not any("not finite" in said for said in needs(published(world.daemon), world.slurm.now_s))
