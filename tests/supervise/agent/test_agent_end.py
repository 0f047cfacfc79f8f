"""When the agent ends."""

from __future__ import annotations

import signal
import subprocess

import pytest
from agent_stage import AgentStage

from slurm_robust.supervise.agent.messages import (
    Cleaned,
    CleanUp,
    Hello,
    RankFound,
    RankGone,
)


def test_the_agent_ends_with_its_supervisor(stage: AgentStage) -> None:
    """End of input ends it, and harms no rank."""
    victim = stage.victim(0)
    stage.start_agent()
    stage.receive(RankFound, rank=0)
    assert stage.agent is not None
    stage.close_input()
    assert stage.agent.wait(10) == 0
    assert victim.poll() is None


def test_an_agent_stays_as_long_as_its_ranks_when_slurm_ends_the_job(stage: AgentStage) -> None:
    """SIGTERM, and no supervisor any more: it is there until the last rank is gone, and no longer."""
    victims = [stage.victim(0), stage.victim(1)]
    stage.start_agent()
    assert stage.agent is not None
    for rank in (0, 1):
        stage.receive(RankFound, rank=rank)
    stage.agent.terminate()
    stage.close_input()
    victims[0].kill()
    stage.receive(RankGone, rank=0)
    victims[0].wait()
    with pytest.raises(subprocess.TimeoutExpired):
        stage.agent.wait(0.7)  # more than it stays where there was no SIGTERM
    victims[1].kill()
    victims[1].wait()
    stage.agent.wait(5.0)
    assert stage.agent.returncode == 0


@pytest.mark.parametrize("first", [signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2])
def test_signals_that_are_meant_for_the_program(stage: AgentStage, first: signal.Signals) -> None:
    """`--signal=USR1@300` goes to all steps: an agent takes no notice. Without its supervisor it ends, ranks or not."""
    stage.victim(0)
    stage.start_agent()
    assert stage.agent is not None
    stage.receive(RankFound, rank=0)
    stage.agent.send_signal(first)
    stage.send(CleanUp(3, "none"))
    stage.receive(Cleaned, request_id=3)
    stage.close_input()
    stage.agent.wait(5.0)
    assert stage.agent.returncode == 0


def test_a_job_without_ranks_ends_at_once(stage: AgentStage) -> None:
    """SIGTERM where no rank is: nothing is waited for."""
    stage.start_agent()
    stage.receive(Hello)
    assert stage.agent is not None
    stage.agent.terminate()
    stage.agent.wait(5.0)
    assert stage.agent.returncode == 0
