"""A supervisor that finds srun running: its launcher has started it already."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from supervised import World

from slurm_robust.core.model import EXIT_STOPPED_FOR_GOOD
from slurm_robust.marks.claim import STATE_DONE, Claim
from slurm_robust.supervise.launch.messages import StartedEarly
from slurm_robust.supervise.supervisor import Supervisor


def early(output: Path, *, at: int = 0) -> StartedEarly:
    """An srun that was given step 7, when the output had so many bytes."""
    return StartedEarly("1.0.9.1", "ab12", "/ck/step-7", 7, True, "3-5", ("step-8 is demoted",), {str(output): at})


def world_with(tmp_path: Path, command: str = "python train.py") -> World:
    """A job whose launcher has started srun, and whose output has a line of it already."""
    output = tmp_path / "out"
    output.write_text("an earlier step's\n")
    world = World(tmp_path / "story", command=command, output_files=(output,))
    assert world.channel is not None
    world.channel.early = early(output, at=output.stat().st_size)
    with output.open("a") as f:
        f.write("srun: error: n2: task 1: Exited with exit code 3\n")
    return world


def test_srun_is_taken_over_and_not_started_again(tmp_path: Path) -> None:
    """With its name, its checkpoint and its lineage; a good end is reported as ever."""
    world = world_with(tmp_path)
    assert world.channel is not None
    supervisor = Supervisor(world.session)

    def ends() -> None:
        assert world.channel is not None
        if not world.session.fleet.ranks:
            world.finds_ranks()
            world.steps(41)
        elif world.clock.at_s > 1_000_010:
            world.channel.ended = 0

    world.clock.on_sleep = ends
    assert asyncio.run(supervisor.run()) == 0
    assert world.channel.launched == []
    assert supervisor.attempt.name == "1.0.9.1"
    assert (supervisor.attempt.resume_point.step, supervisor.attempt.resume_point.skipped) == (7, "3-5")
    assert world.job.claim.lineage == "ab12"
    assert world.job.claim.state == STATE_DONE
    assert "step 7 is verified: /ck/step-7" in world.text("checkpoint")
    assert "started anew" not in world.text("note"), "no supervisor was there before"


@pytest.mark.parametrize(("how", "cancelled"), [("Killed", True), ("Segmentation fault", False)])
def test_a_step_that_is_cancelled_before_agents_have_seen_it_stays_so(
    tmp_path: Path, how: str, cancelled: bool
) -> None:
    """A `kill` of our launcher in the first second: nobody knows the step's number yet, but only one was started."""
    world = world_with(tmp_path)
    assert world.channel is not None
    number = world.session.job.job_id
    (output,) = world.session.output_files
    output.write_text(
        f"an earlier step's\nslurmstepd-n1: error: *** STEP {number}.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***\n"
        f"srun: error: n1: task 0: {how}\nsrun: error: n2: task 1: {how}\n"
    )
    world.channel.ended = 137 if cancelled else 139
    world.clock.on_sleep = lambda: setattr(world.channel, "ended", 0) if world.channel.launched else None
    code = asyncio.run(Supervisor(world.session).run())
    assert (code, len(world.channel.launched)) == ((137, 0) if cancelled else (0, 1))
    assert ("the step was cancelled" in world.text("cancelled")) is cancelled


@pytest.mark.parametrize("ended", [None, 0])
def test_one_launch_too_many_is_ended_where_only_the_comment_counts_them(tmp_path: Path, ended: int | None) -> None:
    """A script that chooses a new folder for each launch, or a full disk; an srun that has ended well stays so."""
    world = world_with(tmp_path)
    assert world.channel is not None
    world.channel.ended = ended
    world.job.claim = Claim("watching", "line", failed=30, failed_since_s=world.clock.at_s - 60)
    assert asyncio.run(Supervisor(world.session).run()) == (0 if ended == 0 else EXIT_STOPPED_FOR_GOOD)
    assert world.channel.orders == (["exit 0"] if ended == 0 else ["kill", f"exit {EXIT_STOPPED_FOR_GOOD}"])
    assert ("30 launches" in world.text("refused")) is (ended is None)


def test_what_it_has_printed_before_there_was_a_supervisor_is_read(tmp_path: Path) -> None:
    """From where its output begins in the file: a quick death is explained by its first lines."""
    world = world_with(tmp_path)
    assert world.channel is not None
    world.channel.ended = 3
    supervisor = Supervisor(world.session)
    codes: list[int | None] = []

    async def one_poll() -> None:
        supervisor._launch_first()
        world.finds_ranks()
        world.loses(1)
        supervisor.attempt.read_outputs()
        supervisor.attempt.confirm_exits(ended=True)
        codes.extend(end.exit_code for end in supervisor.attempt.exits.values())

    asyncio.run(one_poll())
    assert codes == [3]
