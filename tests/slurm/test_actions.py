from __future__ import annotations

import pytest

from slurm_robust.slurm.actions import confirmed
from slurm_robust.slurm.errors import SlurmRefusedError, SlurmTimeoutError, SlurmUnavailableError, SlurmUnconfirmedError


class World:
    """A clock and a Slurm that shows what was done after some looks."""

    def __init__(self, *looks: object) -> None:
        self.now_s = 0.0
        self.looks = list(looks)
        self.acts = 0

    def act(self) -> None:
        """Count it."""
        self.acts += 1

    def look(self) -> object:
        """The next thing that Slurm shows; the last one stays."""
        seen = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        if isinstance(seen, Exception):
            raise seen
        return seen

    def sleep(self, seconds: float) -> None:
        """Let time go by."""
        self.now_s += seconds

    def confirmed(self) -> object:
        """Do and look, within ten seconds of this world."""
        return confirmed(
            "drain n1", self.act, self.look, timeout_s=10, poll_s=1, clock=lambda: self.now_s, sleep=self.sleep
        )


def test_done_once_it_shows() -> None:
    """One act, as many looks as it takes."""
    world = World(None, None, None, "seen")
    assert world.confirmed() == "seen"
    assert (world.acts, world.now_s) == (1, 2)


def test_not_done_again_where_it_shows_already() -> None:
    """Idempotent: what an earlier life did counts."""
    world = World("seen")
    assert world.confirmed() == "seen"
    assert world.acts == 0


def test_not_shown_in_time_is_an_error() -> None:
    """Says what was asked for and how long was waited."""
    world = World(None)
    with pytest.raises(SlurmUnconfirmedError, match=r"drain n1.*within 10 s"):
        world.confirmed()
    assert (world.acts, world.now_s) == (1, 10)


def test_a_controller_that_does_not_answer_is_asked_again() -> None:
    """Not seeing is not the same as not there."""
    world = World(None, SlurmUnavailableError("nodes", "down"), SlurmTimeoutError("nodes"), "seen")
    assert world.confirmed() == "seen"


def test_the_last_trouble_stands_in_the_error() -> None:
    """Where reading failed to the end, the person learns why."""
    world = World(None, SlurmUnavailableError("nodes", "connect failure"))
    with pytest.raises(SlurmUnconfirmedError, match="connect failure"):
        world.confirmed()


def test_a_refused_act_passes_through() -> None:
    """What Slurm refuses is not waited for."""

    def refused() -> None:
        raise SlurmRefusedError("drain n1", "Invalid user id")

    with pytest.raises(SlurmRefusedError):
        confirmed("drain n1", refused, lambda: None, timeout_s=10)
