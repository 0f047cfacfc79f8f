"""A whole incident in one supervisor: launch, hang, plan, relaunch, first new step. The clock is the test's."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest
from supervised import World, in_d_state

from slurm_robust import checkpoint
from slurm_robust.config.site import Config
from slurm_robust.core.model import EXIT_STOPPED_FOR_GOOD, Mode
from slurm_robust.marks.claim import STATE_DONE, STATE_WANTS_REQUEUE, Claim
from slurm_robust.supervise.agent.messages import from_agent
from slurm_robust.supervise.launch.user_end import Received
from slurm_robust.supervise.lineage import lineage_store
from slurm_robust.supervise.lineage.lineage import Lineage, Tally
from slurm_robust.supervise.supervisor import Supervisor

NODES = ("n1", "n2", "n3")


class Story:
    """A training on n1 and n2 with the spare n3, whose rank 1 is in D state from step 20 on of its first launch.

    Attributes:
        launches: How many launches were seen.
    """

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.world = World(folder / "story", command="-N2 python train.py", nodes=NODES, **changes)
        self.world.agents.processes = in_d_state
        self.launches = self.step = 0
        self.last_step = 24
        self.world.clock.on_sleep = self.goes_on

    def goes_on(self) -> None:
        """What the ranks do while the supervisor sleeps."""
        world, channel = self.world, self.world.channel
        assert channel is not None
        if len(channel.launched) > self.launches and channel.ended is None:
            self.launches = len(channel.launched)
            world.finds_ranks(nodes=("n1", "n2") if self.launches == 1 else ("n1", "n3"))
            self.step = 0 if self.launches == 1 else 11
        if channel.ended is not None or not self.launches:
            return
        if self.launches == 1 and self.step >= 20:
            return
        if self.step >= self.last_step:
            channel.ended = 0
            return
        self.step += 1
        world.steps(self.step)


@pytest.fixture
def story(tmp_path: Path) -> Story:
    """It goes back to the checkpoint of step 10."""
    checkpoint.save(tmp_path / "ck", 10, {"x": 1})
    return Story(tmp_path, checkpoint_dir=str(tmp_path / "ck"))


def test_a_hang_is_relaunched_without_its_node_and_closed_by_the_first_new_step(story: Story) -> None:
    """The supervisor replaces the attempt; the incident stays open until training is further than before."""
    world = story.world
    supervisor = Supervisor(world.session)
    first = supervisor.attempt
    assert asyncio.run(supervisor.run()) == 0
    assert world.channel is not None
    assert supervisor.attempt is not first
    (argv, env, name) = world.channel.launched[1]
    assert "--exclude=n2" in argv
    assert env["SROBUST_RESUME_STEP"] == "10"
    assert name.endswith(".2")
    kinds = [k for k in world.kinds if k not in ("captured", "waiting", "note", "checkpoint")]
    assert kinds == [
        "training",
        "suspected",
        "verdict",
        "suspect",
        "decided",
        "relaunched",
        "training",
        "resumed",
        "finished",
    ]
    (incident,) = world.incidents
    assert incident["plan"]["road"] == "spare_in_allocation"
    assert incident["verdict"]["suspects"][0]["node"] == "n2"
    times = incident["times"]
    order = ["fault", "suspected", "captured", "localised", "decided", "stopped", "running", "first_new_step"]
    assert [times[key] for key in order if key in times] == sorted(times[key] for key in order)
    assert set(order) <= set(times)
    assert incident["outcome"].startswith("Resumed from step 10 (verified checkpoint)")
    assert (world.job.claim.state, world.job.claim.incident) == (STATE_DONE, incident["id"])


def test_observe_mode_reports_and_does_nothing(tmp_path: Path) -> None:
    """The same hang: the plan is written, nothing is launched, and the user's srun decides in the end."""
    story = Story(tmp_path, config=Config(mode=Mode.OBSERVE))
    world = story.world
    supervisor = Supervisor(world.session)

    async def watches() -> None:
        assert world.channel is not None
        supervisor._launch_first()
        until_s = world.clock.at_s + 120
        while world.clock.at_s < until_s:
            await world.clock.sleep(0.2)
            assert await supervisor.poll() is None
        assert len(world.channel.launched) == 1
        world.channel.ended = 9
        assert await supervisor.poll() == 9

    asyncio.run(watches())
    assert "observe mode: would take" in world.text("observed")
    assert world.incidents[0]["outcome"] == "Observe mode: nothing was done."
    assert world.kinds.count("suspected") == 2, "the hang once, and the end"


def test_observe_mode_reports_a_later_hang_too(tmp_path: Path) -> None:
    """Training moved in between: the next silence is not the one that was left alone."""
    story = Story(tmp_path, config=Config(mode=Mode.OBSERVE))
    world = story.world
    supervisor = Supervisor(world.session)

    async def watches() -> None:
        supervisor._launch_first()
        began_s = world.clock.at_s
        while world.clock.at_s < began_s + 300:
            await world.clock.sleep(0.2)
            assert await supervisor.poll() is None
            if began_s + 120 < world.clock.at_s < began_s + 150:
                story.step += 1
                world.steps(story.step)

    asyncio.run(watches())
    assert [i["outcome"] for i in world.incidents] == ["Observe mode: nothing was done."] * 2
    assert world.text("cleared") == "training moves again by itself; nothing was done"


def test_a_hang_that_was_left_alone_stays_announced_until_a_step_comes(tmp_path: Path) -> None:
    """Its stacks had proven it before the silence was long: the daemon reads the claim, and tells people of it."""
    story = Story(tmp_path)
    world = story.world
    supervisor = Supervisor(world.session)

    async def watch(seconds: float) -> None:
        until_s = world.clock.at_s + seconds
        while world.clock.at_s < until_s:
            await world.clock.sleep(0.2)
            assert await supervisor.poll() is None

    async def watches() -> tuple[float, float]:
        supervisor._launch_first()
        await watch(3.0)
        world.clock.on_sleep = lambda: None  # no step comes
        supervisor.attempt.left_alone_at_s = world.clock.at_s
        await world.job.write_claim(suspected_at_s=world.clock.at_s)
        await watch(1.0)
        announced_s = world.job.claim.suspected_at_s
        world.steps(story.step + 1)
        await watch(1.0)
        return announced_s, world.job.claim.suspected_at_s

    announced_s, then_s = asyncio.run(watches())
    assert announced_s > 0
    assert then_s == 0
    assert world.text("cleared") == "training moves again by itself; nothing was done"


def test_a_job_whose_launches_make_no_step_is_not_launched(tmp_path: Path) -> None:
    """Thirty within an hour: exit 93, and srun is never started."""
    world = World(tmp_path, command="python train.py")
    world.job.claim = Claim("watching", "line", failed=30, failed_since_s=world.clock.at_s - 60)
    supervisor = Supervisor(world.session)
    assert asyncio.run(supervisor.run()) == EXIT_STOPPED_FOR_GOOD
    assert world.channel is not None
    assert world.channel.launched == []
    assert "30 launches of this job ended badly" in world.text("refused")
    assert world.job.claim.state == STATE_DONE


def test_a_restarted_supervisor_goes_on_with_the_running_attempt(tmp_path: Path) -> None:
    """The launcher tells it of the attempt and the evicted nodes; nothing is launched."""
    world = World(tmp_path, command="python train.py", nodes=NODES)
    assert world.channel is not None
    world.channel.running_attempt, world.channel.evicted = "1.0.77.3", ("n2",)
    world.clock.on_sleep = lambda: setattr(world.channel, "ended", 0)
    supervisor = Supervisor(world.session)
    assert asyncio.run(supervisor.run()) == 0
    assert world.channel.launched == []
    assert supervisor.attempt.name == "1.0.77.3"
    assert world.kinds == ["note", "finished"]


def test_a_restarted_supervisor_waits_for_the_requeue_that_was_requested(tmp_path: Path) -> None:
    """Its predecessor was killed after the claim: the claim stays, and the launcher becomes the waiting shell."""
    world = World(tmp_path, command="python train.py")
    assert world.channel is not None
    world.channel.running_attempt, world.channel.ended = "1.0.77.1", 137
    world.job.previous = Claim(STATE_WANTS_REQUEUE, "line", restart=0, incident="i", evict=("n2",))
    assert asyncio.run(Supervisor(world.session).run()) == 75
    assert world.channel.orders == ["part", "exit 75"]
    assert world.job.claim.state != STATE_DONE


def test_who_only_watches_writes_no_memory(tmp_path: Path) -> None:
    """Neither the Comment nor the lineage of the job's own supervisor."""
    world = World(tmp_path)
    world.job.can_claim = False
    lineage_store.save(world.session.folder, "run 1", Lineage("a", 5), Tally())
    before = (tmp_path / "lineage.json").read_bytes()
    Supervisor(world.session)
    assert (tmp_path / "lineage.json").read_bytes() == before
    assert "update 1" not in world.slurm.acts


def test_what_the_user_ends_is_not_started_again(tmp_path: Path) -> None:
    """SIGTERM for srun, whose ranks are then killed: its exit code is returned, and nothing is judged or launched."""
    world = World(tmp_path / "story", command="python train.py")
    channel = world.channel
    assert channel is not None

    def killed() -> None:
        if world.clock.sleeps == 3:
            world.finds_ranks()
            channel.signals.append(Received(signal.SIGTERM, world.clock.at_s))
        if world.clock.sleeps == 40:
            channel.ended = 137

    world.clock.on_sleep = killed
    assert asyncio.run(Supervisor(world.session).run()) == 137
    assert len(channel.launched) == 1
    assert world.kinds == ["cancelled"]
    assert world.text("cancelled") == "the user ended the step (SIGTERM); exit code 137"


def test_a_plan_that_the_user_overtakes_is_not_carried_out(tmp_path: Path) -> None:
    """A rank was killed, and while that is judged the user presses Ctrl-C twice: nothing is started again."""
    world = World(tmp_path / "story", command="python train.py")
    channel = world.channel
    assert channel is not None

    def interrupts() -> None:
        if world.clock.sleeps == 3:
            world.finds_ranks()
            channel.ended = 137
        if channel.ended is not None and world.clock.sleeps > 6 and not channel.signals:
            channel.signals += [Received(signal.SIGINT, world.clock.at_s)] * 2

    world.clock.on_sleep = interrupts
    assert asyncio.run(Supervisor(world.session).run()) == 137
    assert len(channel.launched) == 1
    assert "relaunched" not in world.kinds
    assert world.incidents[0]["outcome"] == "The user ended the step (SIGINT) before anything was done."


def test_a_task_that_fails_alone_leaves_the_others_their_time(tmp_path: Path) -> None:
    """Two separate runs in one step: the first ends with 3, the other one trains on, and srun's code is passed on."""
    world = World(tmp_path / "story", command="python search.py")
    channel = world.channel
    assert channel is not None

    def one_fails() -> None:
        sleeps = world.clock.sleeps
        if sleeps == 3:
            world.finds_ranks()
        if sleeps == 20:
            told = {"t": "exit", "n": "n2", "step_id": "0", "task": 1, "code": 3, "sig": 0, "age_s": 0.1}
            world.session.receive(from_agent(told))
            world.loses(1)
        if 3 < sleeps < 600:
            world.steps(sleeps, ranks=1)
        if sleeps == 600:
            world.loses(0)
            channel.ended = 3

    world.clock.on_sleep = one_fails
    assert asyncio.run(Supervisor(world.session).run()) == 3
    assert len(channel.launched) == 1
    assert world.clock.sleeps >= 600, "the other run was not ended"
    assert "relaunched" not in world.kinds
    assert "kill" not in channel.orders


def test_an_attempt_that_reports_no_step_is_not_said_to_have_made_one(tmp_path: Path) -> None:
    """Its predecessor was killed; this one ends well: the incident is closed, and no step -1 is named."""
    world = World(tmp_path / "story", command="python train.py")
    channel = world.channel
    assert channel is not None

    def once_killed() -> None:
        if channel.launched and channel.ended is None:
            world.finds_ranks()
            channel.ended = 137 if len(channel.launched) == 1 else 0

    world.clock.on_sleep = once_killed
    assert asyncio.run(Supervisor(world.session).run()) == 0
    assert len(channel.launched) == 2
    assert world.text("resumed").startswith("the attempt that followed ended well; it reported no step")
    assert "-1" not in world.text("resumed")


def test_a_hang_after_many_healthy_pauses_is_still_acted_on_within_ninety_seconds(story: Story) -> None:
    """Twelve suspicions of this hour came to nothing: short pauses are ignored, and a hang is not."""
    world = story.world
    supervisor = Supervisor(world.session)
    for _ in range(12):
        supervisor._log.count_idle_suspicion()
    assert asyncio.run(supervisor.run()) == 0
    (incident,) = world.incidents
    assert incident["plan"]["road"] == "spare_in_allocation"
    times = incident["times"]
    assert 74.0 <= times["suspected"] - times["fault"] <= 80.0
    assert times["decided"] - times["fault"] <= 90.0
    assert any("came to nothing" in str(line["text"]) for line in world.story)


def test_after_many_healthy_pauses_a_silence_has_to_outlast_the_longest(story: Story) -> None:
    """A pause of 40 s between steps was healthy: three times as long, and not before."""
    world = story.world
    supervisor = Supervisor(world.session)
    for _ in range(12):
        supervisor._log.count_idle_suspicion()
    original = supervisor._begin_attempt

    def begins(name: str, **more: Any) -> None:
        original(name, **more)
        supervisor.attempt.pauses = supervisor.attempt.pauses.after("train", 40.0)

    supervisor._begin_attempt = begins  # type: ignore[method-assign]
    assert asyncio.run(supervisor.run()) == 0
    (incident,) = world.incidents
    times = incident["times"]
    assert 119.0 <= times["suspected"] - times["fault"] <= 125.0
