"""What ranks tell of their loss becomes the training's health, unless the program keeps it itself."""

from __future__ import annotations

import asyncio
import math
import threading
from pathlib import Path

import pytest
from supervised import World

from slurm_robust import checkpoint
from slurm_robust.checkpoint import HealthLog
from slurm_robust.checkpoint.base import rollback_log
from slurm_robust.checkpoint.health import health_log, rollback
from slurm_robust.checkpoint.health.loss_health import HealthLimits
from slurm_robust.config.site import Config
from slurm_robust.core.model import Mode
from slurm_robust.localize.evidence import RankExit
from slurm_robust.policy.job.bad_loss import BadLoss
from slurm_robust.supervise.agent.messages import from_agent
from slurm_robust.supervise.watch import losses as losses_module
from slurm_robust.supervise.watch.loss_watch import LossWatch
from slurm_robust.supervise.watch.losses import Losses, bad_loss_line


class Training:
    """One rank that reports its loss."""

    def __init__(self, directory: Path | str, folder: Path, *, acting: bool = True) -> None:
        config = Config(mode=Mode.ACT if acting else Mode.OBSERVE)
        self.world = World(folder / "story", config=config, checkpoint_dir=str(directory))
        self.attempt = self.world.attempt()
        self.world.finds_ranks(1)
        self.losses = self.new_losses()

    def new_losses(self) -> Losses:
        """Those of another supervisor."""
        return Losses(self.world.session)

    async def reports(self, step: int, loss: float | str | None) -> None:
        """An agent reports it, and it is taken."""
        entry = [0, step, "train", 0.0, step, loss, None, None]
        self.attempt.fleet.feed(from_agent({"t": "p", "n": "n1", "r": [entry]}), 1.0)
        self.losses.take(self.attempt)
        if self.losses._work is not None:
            await self.losses._work

    async def bad(self) -> BadLoss | None:
        """What is wrong with the loss."""
        return await self.losses.bad(self.attempt)


def test_progress_makes_a_record_and_a_way_back(tmp_path: Path) -> None:
    """A program that only reports progress: NaN after 250 good steps, and back to a checkpoint from well before."""
    of = Training(tmp_path, tmp_path)

    async def story() -> None:
        for step in range(1, 251):
            await of.reports(step, 2.0)
            if step % 50 == 0:
                checkpoint.save(tmp_path, step, {"x": step})
        assert await of.bad() is None
        await of.reports(251, "nan")
        found = await of.bad()
        assert found is not None
        # What was told before the file was read first is not known: one step.
        assert (found.healthy_step, found.before, found.limit) == (150, 0, 2)
        text, step = await of.losses.go_back()
        assert ("back to step 150" in text, step) == (True, 150)

    asyncio.run(story())
    assert checkpoint.latest(tmp_path).step == 150


def test_a_programs_own_record_is_left_alone(tmp_path: Path) -> None:
    """It sees every step; ours would be coarser. Also where it begins to write after us."""
    own = HealthLog(tmp_path, HealthLimits(settle_steps=3))
    of = Training(tmp_path, tmp_path)

    async def story() -> None:
        for step in range(1, 5):
            await of.reports(step, "nan")
        assert await of.bad() is None

    own.observe(1, loss=2.0)
    asyncio.run(story())
    (tmp_path / health_log.HEALTH_NAME).unlink()

    async def later() -> None:
        of.losses = of.new_losses()
        await of.reports(1, 2.0)
        await of.reports(2, 2.0)
        own.write()
        await of.reports(3, "nan")
        assert await of.bad() is None

    asyncio.run(later())
    record, _ = health_log.read(tmp_path)
    assert record is not None
    assert (record.writer, record.trend.seen_step) == ("", 1)


@pytest.mark.parametrize(("directory", "acting"), [("", True), ("ckpt", False)])
def test_nothing_is_written_where_nobody_wants_it(tmp_path: Path, directory: str, *, acting: bool) -> None:
    """No folder of checkpoints is named, or the site only observes."""
    where = tmp_path / directory if directory else ""
    of = Training(where, tmp_path, acting=acting)

    async def story() -> None:
        for step in range(1, 4):
            await of.reports(step, "nan")
        assert await of.bad() is None

    asyncio.run(story())
    assert not list(tmp_path.rglob("*.json"))


def test_last_words_count(tmp_path: Path) -> None:
    """The program ended itself before anybody saw the loss."""
    own = HealthLog(tmp_path, HealthLimits(settle_steps=3))
    for step in range(1, 10):
        own.observe(step, loss=2.0)
        checkpoint.save(tmp_path, step, {"x": step})
    own.write()
    of = Training(tmp_path, tmp_path)
    of.attempt.exits[0] = RankExit(0, "n1", 1.0, 1, 0, ("x", "FloatingPointError: loss is nan"))

    async def story() -> None:
        await of.reports(9, None)
        found = await of.bad()
        assert found is not None
        assert (found.why, found.healthy_step) == ("FloatingPointError: loss is nan", 6)

    asyncio.run(story())


def test_a_file_system_that_hangs_keeps_no_recovery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known of the loss then, and that is said; the same for what cannot be read."""
    of, released = Training(tmp_path, tmp_path), threading.Event()
    HealthLog(tmp_path).observe(1, loss=math.nan)
    (tmp_path / rollback_log.ROLLBACKS_NAME).write_text("{")

    async def story() -> None:
        assert await of.bad() is None
        monkeypatch.setattr(losses_module, "_PATIENCE_S", 0.2)
        monkeypatch.setattr(rollback, "due", lambda *_, **__: released.wait(20))
        assert await of.bad() is None
        released.set()

    asyncio.run(story())
    notes = [str(line["text"]) for line in of.world.story]
    assert rollback_log.ROLLBACKS_NAME in notes[0]
    assert "no answer in 0.2 s" in notes[1]


@pytest.mark.parametrize(
    "line",
    [
        "FloatingPointError: Minimum loss scale reached (0.0001).",
        "Loss is nan, stopping training",
        "RuntimeError: Rank 3: found NaN in local forward loss calculation. Device: 0",
        "step 12 loss: nan",
        "ValueError: loss is not finite",
        "train/loss=inf",
        "RuntimeError: Function 'MulBackward0' returned nan values in its 0th output.",
    ],
)
def test_words_about_a_bad_loss(line: str) -> None:
    """As frameworks and programs say it."""
    assert bad_loss_line(("before", line, "after")) == line


@pytest.mark.parametrize(
    "line", ["loss=2.1 grad_norm=nan", "TypeError: loss", "loss information", "no nan here", "info: loss 2.0", ""]
)
def test_other_words(line: str) -> None:
    """A gradient norm that is not finite is loss scaling at work, and names that begin like infinity are words."""
    assert not bad_loss_line((line,)), math.nan


def test_an_attempt_that_never_had_a_finite_loss_after_others_had(tmp_path: Path) -> None:
    """It was resumed from weights that are NaN: what is by design in a pipeline's first stages is none here."""
    of = Training(tmp_path, tmp_path)

    async def story() -> None:
        for step in range(1, 31):
            await of.reports(step, 2.0)
            if step == 20:
                checkpoint.save(tmp_path, step, {"x": step})
        await of.reports(31, "nan")
        await of.bad()
        of.attempt = of.world.attempt()
        of.world.finds_ranks(1)
        of.losses = of.new_losses()
        watch, told = LossWatch(of.world.session, of.attempt), []
        for step in range(41, 60):
            await of.reports(step, "nan")
            if why := watch.poll(had_finite=of.losses.had_finite):
                told.append(why)
                of.losses.lost = why
        assert len(told) == 1
        found = await of.bad()
        assert found is not None
        assert (found.why, found.healthy_step) == (told[0], 20)

    asyncio.run(story())
