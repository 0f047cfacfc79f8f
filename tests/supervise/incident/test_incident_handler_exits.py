"""What is done about a dead rank, and about an srun that ended badly, without a cluster."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from handler_parts import Parts
from supervised import World

from slurm_robust.config.site import Config, DiagnoseConfig
from slurm_robust.core.model import Mode, Road, SignalKind
from slurm_robust.supervise.incident.incident_log import page
from slurm_robust.supervise.outcome import ExecutePlan, Exit


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    """A training of two ranks that has made twenty steps, and writes into a file."""
    output = tmp_path / "slurm-1.out"
    output.touch()
    made = Parts(World(tmp_path / "story", command="python train.py"))
    made.attempt = made.world.attempt(paths=(output,))
    made.start._attempt = made.attempt
    made.world.finds_ranks()
    made.world.trains()
    return made


def prints(parts: Parts, line: str) -> None:
    """The job's output grows."""
    with parts.attempt.sources.paths[0].open("a") as f:
        f.write(line + "\n")
    parts.attempt.read_outputs()


def test_a_rank_that_died_alone_is_judged_with_the_stacks_of_the_others(parts: Parts) -> None:
    """A second for the others' last lines, one capture of who lives, and a plan."""
    parts.exit_of(1, signal=9)
    began_s = parts.world.clock.at_s
    outcome = asyncio.run(parts.handler.rank_died(parts.attempt, parts.start))
    assert isinstance(outcome, ExecutePlan)
    assert parts.world.clock.at_s - began_s == pytest.approx(1.0, abs=0.3)
    assert parts.world.text("suspected") == "rank 1 on n2 ended with signal 9"
    assert parts.world.kinds.count("captured") == 1
    assert [x.kind for x in parts.log.incident.signals] == [SignalKind.RANK_EXITED]
    assert outcome.plan.road is not Road.ALERT_ONLY


def test_a_cancelled_step_is_no_incident(parts: Parts) -> None:
    """Somebody ended it: its ranks' exits are forgotten, and srun's code is the script's."""
    parts.exit_of(1, signal=9)
    prints(parts, "slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***")
    assert asyncio.run(parts.handler.rank_died(parts.attempt, parts.start)) is None
    assert (parts.attempt.exits, parts.log.current) == ({}, None)
    assert parts.world.channel is not None
    parts.world.channel.ended = 143
    assert asyncio.run(parts.handler.step_failed(parts.attempt, parts.start, 143)) == Exit(143)
    assert parts.world.text("cancelled") == "the step was cancelled; exit code 143"


@pytest.mark.parametrize("late", [False, True])
def test_a_cancellation_is_read_although_every_end_is_known(parts: Parts, late: bool) -> None:
    """The ends came from the agents, before Slurm's line was read; behind a pipe it comes after srun's end."""
    for rank in (0, 1):
        parts.exit_of(rank, signal=9)
    output = parts.attempt.sources.paths[0]
    line = "slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***\n"
    if late:
        parts.world.clock.on_sleep = lambda: output.write_text(line)
    else:
        output.write_text(line)
    assert parts.world.channel is not None
    parts.world.channel.ended = 137
    assert asyncio.run(parts.handler.step_failed(parts.attempt, parts.start, 137)) == Exit(137)
    assert parts.log.current is None


def test_a_programs_own_error_is_stopped_with_its_code(parts: Parts) -> None:
    """An exception on every rank: no node is blamed, and the plan is to stop."""
    assert parts.world.channel is not None
    prints(parts, "ValueError: batch size must be positive")
    for rank in (0, 1):
        prints(parts, f"srun: error: n{rank + 1}: task {rank}: Exited with exit code 3")
        parts.world.loses(rank)
    parts.world.channel.ended = 3
    outcome = asyncio.run(parts.handler.step_failed(parts.attempt, parts.start, 3))
    assert isinstance(outcome, ExecutePlan)
    assert (outcome.plan.road, outcome.plan.exit_code, outcome.plan.evict) == (Road.STOP, 3, ())
    assert parts.world.text("suspected") == "the training step ended with exit code 3"


def test_a_step_of_which_nothing_is_known_is_one_exit(parts: Parts) -> None:
    """Srun ended and named no task: one exit stands for all of it, and the incident is judged all the same."""
    assert parts.world.channel is not None
    parts.world.channel.ended = 137
    outcome = asyncio.run(parts.handler.step_failed(parts.attempt, parts.start, 137))
    assert isinstance(outcome, ExecutePlan)
    assert {rank: e.signal for rank, e in parts.attempt.exits.items()} == {-1: 9}


def test_options_that_srun_refuses_are_no_incident(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing has run: its message goes to the story, and its code to the script."""
    srun = tmp_path / "bin" / "srun"
    srun.parent.mkdir()
    srun.write_text("#!/bin/sh\necho 'srun: unrecognized option --frob' >&2\nexit 255\n")
    srun.chmod(0o755)
    parts = Parts(
        World(tmp_path / "story", command="--frob=1 python train.py", environment={"PATH": f"{srun.parent}:/bin"})
    )
    monkeypatch.setenv("PATH", f"{srun.parent}{os.pathsep}{os.environ['PATH']}")
    assert asyncio.run(parts.handler.step_failed(parts.attempt, parts.start, 255)) == Exit(255)
    assert "unrecognized option --frob" in parts.world.text("refused")
    assert parts.log.current is None


def test_the_page_says_what_the_log_says(parts: Parts) -> None:
    """The root among the errors, and what to do; the incident has it for tools."""
    assert parts.world.channel is not None
    prints(parts, "DistNetworkError: The server socket has failed to listen. port: 26159, name: EADDRINUSE")
    prints(parts, "RuntimeError: Connection closed by peer")
    for rank in (0, 1):
        parts.exit_of(rank, code=1)
    parts.world.channel.ended = 1
    asyncio.run(parts.handler.step_failed(parts.attempt, parts.start, 1))
    cause = parts.log.incident.cause
    assert (cause["category"], cause["blame"]) == ("address_in_use", "program")
    text = page(parts.log.incident)
    assert "## What broke" in text
    assert "EADDRINUSE" in text
    assert "MASTER_PORT" in text


def test_the_place_in_the_program_is_part_of_what_broke(parts: Parts) -> None:
    """The innermost frame that is the program's own; a library's frames below it say nothing about it."""
    assert parts.world.channel is not None
    for line in (
        "[rank1]: Traceback (most recent call last):",
        '[rank1]:   File "/home/u/train.py", line 90, in <module>',
        "[rank1]:     main()",
        '[rank1]:   File "/home/u/model.py", line 7, in forward',
        "[rank1]:     return self.layer(x)",
        '[rank1]:   File "/usr/lib/python3.11/site-packages/torch/nn/modules/linear.py", line 125, in forward',
        "[rank1]:     return F.linear(input, self.weight, self.bias)",
        "[rank1]: RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x3 and 5x6)",
    ):
        prints(parts, line)
    parts.exit_of(1, code=1)
    parts.world.channel.ended = 1
    asyncio.run(parts.handler.step_failed(parts.attempt, parts.start, 1))
    cause = parts.log.incident.cause
    assert (cause["category"], cause["place"], cause["rank"]) == ("shape", "model.py:forward", "1")
    assert cause["signature"] == (
        "shape: RuntimeError: mat# and mat# shapes cannot be multiplied (#x# and #x#) at model.py:forward"
    )


def test_a_sites_own_rule_decides(tmp_path: Path) -> None:
    """Its gateway is down: that is waited for, and nobody is evicted."""
    rules = tmp_path / "site.yaml"
    rules.write_text(
        "rules:\n- {id: gateway, category: storage, pattern: 'gateway \\d+ is down', source: 'https://wiki.example.org',\n"
        "   examples: ['gateway 7 is down', 'gateway 12 is down']}\n"
    )
    output = tmp_path / "slurm-1.out"
    output.touch()
    config = Config(mode=Mode.ACT, diagnose=DiagnoseConfig(rules=(str(rules),)))
    parts = Parts(World(tmp_path / "story", command="python train.py --resume", config=config))
    parts.attempt = parts.world.attempt(paths=(output,))
    parts.world.finds_ranks()
    prints(parts, "[rank1]: ShardError: gateway 7 is down")
    parts.exit_of(1, code=1)
    outcome = asyncio.run(parts.handler.rank_died(parts.attempt, parts.start))
    assert isinstance(outcome, ExecutePlan)
    assert parts.log.incident.cause["category"] == "storage"
    assert (outcome.plan.road, outcome.plan.evict, outcome.plan.pause_s) == (Road.RESTART_IN_PLACE, (), 5.0)


@pytest.mark.parametrize(("trained", "limit_s"), [(True, 1800.0), (False, 60.0)])
def test_an_outage_is_waited_for_longer_once_training_has_begun(tmp_path: Path, trained: bool, limit_s: float) -> None:
    """A name with a typing error looks the same, and a person waits for that answer."""
    parts = Parts(World(tmp_path / "story", command="python train.py"))
    parts.world.finds_ranks()
    if trained:
        parts.world.trains()
    parts.exit_of(1, code=1)
    outcome = asyncio.run(parts.handler.rank_died(parts.attempt, parts.start))
    assert isinstance(outcome, ExecutePlan)
    assert outcome.situation is not None
    assert outcome.situation.outage_wait_s == limit_s


def test_a_mistake_in_the_sites_rules_costs_a_note(tmp_path: Path) -> None:
    """The incident is judged all the same, by the package's own rules."""
    rules = tmp_path / "site.yaml"
    rules.write_text("rules: [{id: gateway}]")
    config = Config(mode=Mode.ACT, diagnose=DiagnoseConfig(rules=(str(rules),)))
    parts = Parts(World(tmp_path / "story", command="python train.py", config=config))
    parts.world.finds_ranks()
    parts.exit_of(1, code=1)
    assert asyncio.run(parts.handler.rank_died(parts.attempt, parts.start)) is not None
    assert f"{rules}:1" in parts.world.text("note")
