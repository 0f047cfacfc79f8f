"""A requeue is wanted: whatever becomes of the daemon and of slurmctld, the job is requeued, or says why not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from supervised import FakeAgents, World

from slurm_robust.core.model import Conclusion, Incident, Plan, Road, Verdict
from slurm_robust.marks.claim import ClaimAnswer, parse, render
from slurm_robust.policy.job.ladder import Rung
from slurm_robust.slurm.errors import SlurmRefusedError, SlurmTimeoutError
from slurm_robust.supervise.agent import messages
from slurm_robust.supervise.recover.step_control import clear_nodes, requeue

TIMES = {"answer_timeout_s": 0.3, "requeue_timeout_s": 0.6}


async def wants(world: World, answer: ClaimAnswer | None = None) -> int:
    """A job of two nodes asks for a requeue without n2, and `answer` is in its AdminComment."""
    plan = Plan(Road.SEAT, "rank 3 is stopped", evict=("n2",))
    if answer is not None:
        job = world.slurm.state.jobs[1]
        world.slurm.state.jobs[1] = replace(job, admin_comment=render(answer))
    return await requeue(world.session, Incident("i1", "1", "1.0.1", 1.0), plan)


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A job that is watched from outside, and acted on."""
    return World(tmp_path / "slurm-robust-1", supervise=TIMES)


def test_a_daemon_that_dies_after_its_yes_does_not_cost_the_job(world: World) -> None:
    """Accepted, and then nobody: the job requeues itself, instead of ending with 75 as if it had failed."""
    slurm = world.slurm
    asyncio.run(wants(world, ClaimAnswer("accepted", "i1", why="hangs", road="seat")))
    assert "requeue 1 without n2" in slurm.acts
    assert slurm.state.jobs[1].restart_count == 1
    assert world.kinds[:3] == ["claimed", "accepted", "unanswered"]


@pytest.mark.parametrize(("rung", "grade"), [("", "certain"), (Rung.LEAVE_GROUP.value, "none")])
def test_a_claim_says_how_sure_the_evidence_is(world: World, rung: str, grade: str) -> None:
    """Nodes that no verdict names are known to be bad, but for a group that the site has chosen to leave as a whole."""
    verdict = Verdict(Conclusion.UNDETERMINED, "all wait")
    plan = Plan(Road.SEAT, "a group stands apart", ("n1", "n2"), rung=rung)
    asyncio.run(requeue(world.session, Incident("i1", "1", "1.0.1", 1.0, verdict=verdict), plan))
    written = parse(world.slurm.state.jobs[1].comment)
    assert written is not None
    assert written.grade == grade


@pytest.mark.parametrize("answer", [None, ClaimAnswer("refused", "i1", why="seat.max_active")])
def test_no_answer_and_a_refusal_lead_to_a_plain_requeue(world: World, answer: ClaimAnswer | None) -> None:
    """As ever."""
    slurm = world.slurm
    asyncio.run(wants(world, answer))
    assert "requeue 1 without n2" in slurm.acts


def test_a_controller_that_is_away_does_not_cost_the_job(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The requeue is tried again until slurmctld hears it; the wrapper does not return meanwhile."""
    slurm = world.slurm
    hears, calls = slurm.requeue, []

    def deaf_at_first(job: object, *, without: Sequence[str] = ()) -> None:
        calls.append(job)
        if len(calls) == 1:
            raise SlurmTimeoutError("requeue job 1", "no answer within 10 s")
        hears(job, without=without)  # type: ignore[arg-type]

    monkeypatch.setattr(slurm, "requeue", deaf_at_first)
    asyncio.run(wants(world))
    assert slurm.state.jobs[1].restart_count == 1


def test_a_refusal_of_slurm_is_said_and_ends_the_waiting(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not requeueable: exit 75, with Slurm's words in the story."""
    slurm = world.slurm

    def no(job: object, *, without: Sequence[str] = ()) -> None:
        raise SlurmRefusedError("requeue job 1", "Requested operation is presently disabled")

    monkeypatch.setattr(slurm, "requeue", no)
    assert asyncio.run(wants(world)) == 75
    assert "presently disabled" in str(world.story)


def test_a_requeue_that_is_on_its_way_is_not_asked_for_twice(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that seemed unheard, then a refusal because it was heard: the wrapper waits to be ended."""
    slurm = world.slurm
    hears, calls = slurm.requeue, []

    def late(job: object, *, without: Sequence[str] = ()) -> None:
        calls.append(job)
        hears(job, without=without)  # type: ignore[arg-type]
        raise SlurmTimeoutError("requeue job 1", "no answer within 10 s")

    monkeypatch.setattr(slurm, "requeue", late)
    asyncio.run(wants(world))
    assert "could not be requeued" not in str(world.story)
    assert slurm.state.jobs[1].restart_count == 1


def test_an_agent_that_was_restarted_is_told_to_clean_too(tmp_path: Path) -> None:
    """The watch step ended just then: its node is as clear as any; no blame for a message that it never got."""
    world = World(tmp_path, supervise={"kill_clean_timeout_s": 4.0})
    attempt = world.attempt()

    class OneComesLate(FakeAgents):
        """That of n2 is restarted, and has not received the first two messages: n1 answers the first, n2 the third."""

        def send(self, message: messages.ToAgent) -> None:
            assert isinstance(message, messages.CleanUp)
            self.sent.append(message)
            if len(self.sent) in (1, 3):
                node = f"n{(len(self.sent) + 1) // 2}"
                attempt.fleet.feed(messages.Cleaned(node, message.request_id, ()), 1.0)

    agents = world.session.agents = OneComesLate(world.session)
    dirty = asyncio.run(clear_nodes(world.session, attempt.fleet, ["n1", "n2"]))
    assert dirty == {}
    left = [message.timeout_s for message in agents.sent if isinstance(message, messages.CleanUp)]
    assert 4.0 >= left[0] > left[1] > left[2], "the same end for all"
