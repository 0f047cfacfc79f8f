"""Ranks that are gone without a report of their end, beside a rank whose end is reported: who is named?"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from handler_parts import Parts
from supervised import World

from slurm_robust.core.model import Conclusion
from slurm_robust.localize.evidence import RankExit
from slurm_robust.supervise.incident.waited_for import unreported_ranks
from slurm_robust.supervise.outcome import ExecutePlan

NODES = ("n1", "n1", "n2", "n2")


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    """A training of four ranks on two nodes, without labels, that has made twenty steps."""
    made = Parts(World(tmp_path / "story", command="python train.py"))
    made.attempt = made.world.attempt(paths=(tmp_path / "slurm-1.out",))
    made.start._attempt = made.attempt
    made.world.finds_ranks(4, NODES)
    made.world.trains()
    return made


def followers_end(parts: Parts, raised: str) -> None:
    """The ranks of n1 have raised this, and srun reports them; those of n2 are gone without a word of srun's."""
    trace = f'Traceback (most recent call last):\n  File "train.py", line 28, in recvall\n{raised}\n'
    parts.attempt.sources.paths[0].write_text(
        f"{trace}{trace}srun: error: n1: tasks 0-1: Exited with exit code 1\n",
    )
    parts.attempt.read_outputs()
    for rank in range(4):
        parts.world.loses(rank)
    parts.attempt.confirm_exits()


def test_ranks_that_are_gone_with_their_steps_daemon_are_named(parts: Parts) -> None:
    """Srun still waits for them: the node of the two that lost a peer is not named, and the other is."""
    followers_end(parts, "ConnectionResetError: peer gone in all_reduce")
    outcome = asyncio.run(parts.handler.rank_died(parts.attempt, parts.start))
    assert isinstance(outcome, ExecutePlan)
    assert [(s.node, s.ranks) for s in outcome.verdict.suspects] == [("n2", (2, 3))]
    assert "ranks 0-1 only followed" in outcome.verdict.reason
    assert outcome.plan.evict == ()
    assert outcome.failure is not None
    assert outcome.failure.nodes == ("n2",)


def test_ranks_of_which_srun_has_said_nothing_until_its_end_have_finished(parts: Parts) -> None:
    """It ends once it knows the end of every task: exit code 0 is the one that it does not report."""
    followers_end(parts, "BrokenPipeError: [Errno 32] Broken pipe")
    assert parts.world.channel is not None
    parts.world.channel.ended = 1
    outcome = asyncio.run(parts.handler.step_failed(parts.attempt, parts.start, 1))
    assert isinstance(outcome, ExecutePlan)
    assert (outcome.verdict.conclusion, outcome.verdict.suspects) == (Conclusion.UNDETERMINED, ())


def test_only_ranks_of_nodes_without_any_report_are_unreported(parts: Parts) -> None:
    """Where one end is known, the step's daemon lives, and who is missing there has finished; so has who lives."""
    for rank in (0, 2, 3):
        parts.world.loses(rank)
    assert unreported_ranks(parts.attempt) == {}, "no end at all is known"
    parts.attempt.exits[1] = RankExit(1, "n1", parts.world.clock.at_s, 1)
    assert list(unreported_ranks(parts.attempt)) == [2, 3]
    parts.attempt.exits[3] = RankExit(3, "n2", parts.world.clock.at_s, 1)
    assert unreported_ranks(parts.attempt) == {}


def test_a_silence_with_dead_ranks_is_judged_by_their_last_lines(parts: Parts) -> None:
    """A rank that says that it lost its peer is not the culprit: the others, which hang, are looked at."""
    path = parts.attempt.sources.paths[0]
    path.write_text(
        'Traceback (most recent call last):\n  File "train.py", line 28, in recvall\n'
        "ConnectionResetError: [Errno 104] Connection reset by peer\n"
        "srun: error: n1: task 0: Exited with exit code 1\n",
    )
    parts.attempt.read_outputs()
    parts.world.loses(0)
    parts.attempt.confirm_exits()
    assert list(parts.attempt.exits) == [0]
    parts.world.clock.at_s += 11.0
    asyncio.run(parts.silent())
    assert parts.attempt.exits[0].shared_lines
    assert "died first: exit code 1" not in parts.world.text("verdict")
