"""A rank has ended badly while others run: when is that acted on?"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "localize"))
sys.path.append(str(Path(__file__).resolve().parents[1]))

from localize_scenes import ALL_REDUCE, USER, capture, process, rank, waiting  # type: ignore[import-not-found]
from supervised import World

from slurm_robust.localize.evidence import Capture, RankCapture, RankExit
from slurm_robust.supervise.agent.messages import from_agent
from slurm_robust.supervise.incident.dead_ranks import CAPTURES_AFTER_S, DeadRanks
from slurm_robust.supervise.incident.investigation import Investigation
from slurm_robust.supervise.launch.srun_command import parse
from slurm_robust.supervise.session import Session
from slurm_robust.supervise.watch.attempt_state import AttemptState

NODES = ("n0", "n1", "n2", "n3")


class Scene:
    """Four ranks on four nodes, of which rank 1 has ended with 1; each look takes a fifth of a second."""

    def __init__(self, folder: Path) -> None:
        self.world = World(folder, nodes=NODES)
        self.attempt = self.world.attempt()
        for number, node in enumerate(NODES):
            self.world.finds(number, node, world=4)
        self.captured: list[float] = []
        self.shows: Callable[[int], RankCapture] = waiting
        """What a rank does when it is looked at."""
        self.dead = DeadRanks(self.world.session, self.attempt, self.investigate)
        self.ends(1)

    def ends(self, number: int, *, killed: bool = False) -> None:
        """This rank ends with exit code 1, or by SIGKILL."""
        self.attempt.fleet.ranks[number].gone_at_s = self.world.clock.at_s
        how = (None, 9) if killed else (1, 0)
        self.attempt.exits[number] = RankExit(number, NODES[number], self.world.clock.at_s, *how)

    def investigate(self, session: Session, attempt: AttemptState) -> Investigation:
        """Captures that show what the scene says, at once."""
        scene = self

        class Shown(Investigation):
            async def capture(self, *, keep: bool = True, within_s: float = 0.0) -> Capture:
                assert not keep, "a quiet capture"
                now_s = scene.world.clock.at_s
                scene.captured.append(now_s)
                self.rounds += 1
                self.captures.append(capture(now_s, *(scene.shows(r.rank) for r in attempt.fleet.alive)))
                return self.captures[-1]

        return Shown(session, attempt)

    def steps(self) -> None:
        """The ranks that run make a step."""
        for r in self.attempt.fleet.alive:
            entry = [r.rank, len(self.captured), "train", 0.0, 1 + len(self.captured)]
            self.world.session.receive(from_agent({"t": "p", "n": r.node, "r": [[*entry, None, None, None]]}))

    def after(self, within_s: float, *, stepping: bool = False) -> float | None:
        """How long it took until the deaths are to be handled; None if they are not, within so long."""
        began_s = self.world.clock.at_s
        while self.world.clock.at_s - began_s <= within_s:
            if stepping:
                self.steps()
            if asyncio.run(self.dead.decide_now()):
                return self.world.clock.at_s - began_s
            self.world.clock.at_s += 0.2
        return None


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """The others wait in a collective, unless a test says otherwise."""
    return Scene(tmp_path)


def at_work(number: int) -> RankCapture:
    """A rank in code of its own, where the clock of its processor runs."""
    at_work.cpu_s += 5.0  # type: ignore[attr-defined]
    return rank(number, process(USER, cpu_s=at_work.cpu_s), step=None)  # type: ignore[attr-defined]


at_work.cpu_s = 0.0  # type: ignore[attr-defined]


def trained(scene: Scene, *, each_s: float = 1.0) -> None:
    """All ranks have trained until now, and report their steps; rank 1 ends now."""
    del scene.attempt.exits[1]
    scene.attempt.fleet.ranks[1].gone_at_s = 0.0
    for step in range(20):
        scene.world.clock.at_s += each_s
        for number, node in enumerate(NODES):
            entry = [number, step, "train", 0.0, step + 1, None, None, None]
            scene.world.session.receive(from_agent({"t": "p", "n": node, "r": [entry]}))
    scene.ends(1)


def sending(number: int) -> RankCapture:
    """A rank of another run, which trains: it is in a collective, and data is on its way."""
    sending.net_bytes += 100_000_000  # type: ignore[attr-defined]
    found = waiting(number)
    return replace(found, processes=tuple(replace(p, net_bytes=sending.net_bytes) for p in found.processes))  # type: ignore[attr-defined]


sending.net_bytes = 0  # type: ignore[attr-defined]


def spinning(number: int) -> RankCapture:
    """A rank in a collective whose host uses a whole processor: it waits, or it launches work."""
    spinning.cpu_s += 60.0  # type: ignore[attr-defined]
    return rank(number, process(ALL_REDUCE, cpu_s=spinning.cpu_s), step=None)  # type: ignore[attr-defined]


spinning.cpu_s = 0.0  # type: ignore[attr-defined]


def test_a_death_that_the_others_wait_for_is_handled_within_seconds(scene: Scene) -> None:
    """Steps of a second have stopped for longer than the limit of a step, 5 s, and all others are in a collective."""
    trained(scene)
    took_s = scene.after(20)
    assert took_s is not None
    assert 5.0 <= took_s < 8.0


def test_long_steps_are_waited_for(scene: Scene) -> None:
    """Steps of ten seconds: not before 32 s, and then at once."""
    trained(scene, each_s=10.0)
    took_s = scene.after(60)
    assert took_s is not None
    assert 32.0 <= took_s < 34.0


def test_in_a_job_that_never_reports_two_captures_do_not_prove_waiting(scene: Scene) -> None:
    """All others rest in a collective, without data and without a processor, for the patience of strong evidence."""
    took_s = scene.after(120)
    assert took_s is not None
    assert 75.0 <= took_s < 80.0


@pytest.mark.parametrize("shows", [sending, spinning])
def test_an_independent_run_that_never_reports_outlives_the_death(
    scene: Scene, shows: Callable[[int], RankCapture]
) -> None:
    """It trains in its own group, and each capture finds it in a collective."""
    scene.shows = shows
    assert scene.after(600) is None


def test_an_independent_run_that_sends_data_outlives_the_death(scene: Scene) -> None:
    """Its own steps are slower than those of the run that has ended."""
    trained(scene)
    scene.shows = sending
    assert scene.after(600) is None


def test_hosts_that_spin_may_be_of_another_run_with_longer_steps(scene: Scene) -> None:
    """Whose steps the limit is from is not known, so it takes the patience of strong evidence."""
    trained(scene)
    scene.shows = spinning
    took_s = scene.after(120)
    assert took_s is not None
    assert 75.0 <= took_s < 80.0


def test_hosts_that_spin_are_waiting_where_each_reports_its_own_steps(scene: Scene) -> None:
    """Each of them is silent for longer than its own steps take."""
    trained(scene)
    for info in scene.attempt.fleet.ranks.values():
        info.first_step, info.first_step_at_s = 0, scene.world.clock.at_s - 19.0
    scene.shows = spinning
    took_s = scene.after(20)
    assert took_s is not None
    assert 5.0 <= took_s < 8.0


def test_a_death_that_training_has_outlived_explains_no_pause_at_once(scene: Scene) -> None:
    """A helper failed, steps went on for a minute, and then they pause: not before the patience of strong evidence.

    The silence itself is captured more often, by the handler of silence.
    """
    trained(scene)
    assert scene.after(60, stepping=True) is None
    took_s = scene.after(140)
    assert took_s is not None
    assert took_s >= 74.0


def test_tasks_that_go_on_without_the_dead_one_are_left_alone(scene: Scene) -> None:
    """A search: said once, looked at now and then for a few minutes, and nothing is done."""
    scene.shows = at_work
    assert scene.after(600) is None
    assert len(CAPTURES_AFTER_S) <= len(scene.captured) <= len(CAPTURES_AFTER_S) + 1
    assert scene.world.kinds == ["note"]
    assert "rank 1 ended badly, others run" in scene.world.text("note")


def test_a_second_death_is_looked_at_anew(scene: Scene) -> None:
    """Others may wait for that one."""
    scene.shows = at_work
    assert scene.after(300) is None
    scene.ends(2)
    scene.shows = waiting
    took_s = scene.after(120)
    assert took_s is not None
    assert took_s < 80.0


def test_ranks_that_train_on_in_collectives_wait_for_nobody(scene: Scene) -> None:
    """A monitor has died: each capture finds the others in a collective, and each time another step is done."""
    assert scene.after(60, stepping=True) is None


def test_others_that_stand_still_without_a_step_are_given_a_while(scene: Scene) -> None:
    """They train no more, and what they wait for is not a collective: the patience of weak evidence, not 2 s."""
    scene.steps()
    scene.world.clock.at_s += 1.0
    scene.shows = lambda number: rank(number, process(USER, cpu_s=1.0), step=None)
    took_s = scene.after(600)
    assert took_s is not None
    assert 299 <= took_s < 380


def test_without_steps_standing_still_proves_nothing_for_long(scene: Scene) -> None:
    """A task of a search may sleep for minutes; after the action limit (30 min) it counts as waiting."""
    scene.shows = lambda number: rank(number, process(USER, cpu_s=1.0), step=None)
    took_s = scene.after(3000)
    assert took_s is not None
    assert 1800 <= took_s < 2400


def test_a_rank_that_was_killed_is_waited_for_by_those_that_stand_still(scene: Scene) -> None:
    """Also where the job never reports anything: the patience of weak evidence."""
    scene.ends(1, killed=True)
    scene.shows = lambda number: rank(number, process(USER, cpu_s=1.0), step=None)
    took_s = scene.after(600)
    assert took_s is not None
    assert 300 <= took_s < 380


def test_independent_tasks_that_compute_outlive_one_that_was_killed(scene: Scene) -> None:
    """They stay at one place and use a processor, as a long call does."""
    scene.ends(1, killed=True)
    scene.shows = at_work
    assert scene.after(3000) is None


@pytest.mark.parametrize(
    ("words", "environment", "settings", "within_s"),
    [
        (["train"], {}, {"KillOnBadExit": "1"}, 0.0),
        (["train"], {"SLURM_KILL_BAD_EXIT": "1"}, {"KillOnBadExit": "0"}, 0.0),
        (["train"], {}, {"KillOnBadExit": "0", "WaitTime": "30 sec"}, 30.2),
    ],
)
def test_where_plain_srun_would_end_the_step_its_end_is_handled_then(
    scene: Scene, words: list[str], environment: dict[str, str], settings: dict[str, str], within_s: float
) -> None:
    """We keep srun from killing, for the sake of evidence; the step then ends as it would have."""
    scene.shows = at_work
    session = scene.world.session
    session.command, session.environment = parse(words), environment
    session.job.client.settings = lambda: settings  # type: ignore[method-assign]
    took_s = scene.after(60)
    assert took_s == pytest.approx(within_s, abs=0.01)


def test_slurm_that_does_not_tell_its_settings_changes_nothing(scene: Scene) -> None:
    """It is asked once; then the ranks that run are left alone."""
    scene.shows = at_work
    scene.world.session.command = parse(["train"])
    scene.world.slurm.down = True
    assert scene.after(60) is None


def test_nothing_is_waited_for_where_nothing_else_runs(scene: Scene) -> None:
    """All ranks have ended, and srun has not yet."""
    for number in (0, 2, 3):
        scene.ends(number)
    assert scene.after(0) == 0
    assert scene.captured == []


def test_the_death_of_a_rank_whose_node_is_silent_is_handled_at_once(scene: Scene) -> None:
    """The node may be gone: it is no task's own end."""
    scene.world.session.allocation.silent_nodes = ["n1"]
    assert scene.after(0) == 0
