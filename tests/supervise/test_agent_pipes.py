"""PyTorch leaves the pipes in /tmp that ask its flight recorder for a dump; the agent removes those that we named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import wait_until
from test_agent import Stage


@pytest.fixture
def stage() -> Iterator[Stage]:
    """A stage that is cleared at the end."""
    made = Stage()
    yield made
    made.end()


PIPED = """
import os, time
os.mkfifo(os.environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] + os.environ["SLURM_PROCID"] + ".pipe")
time.sleep(999)
"""


def test_pytorchs_pipes_go_with_their_ranks(stage: Stage, tmp_path: Path) -> None:
    """PyTorch leaves them in /tmp: that of a rank that ends goes at once, that of a rank that lives stays."""
    named = {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{tmp_path}/srobust-1.0.1-"}
    first, second = (stage.victim(number, code=PIPED, **named) for number in (0, 1))
    wait_until(lambda: len(list(tmp_path.iterdir())) == 2, 20, "both pipes")
    stage.start_agent()
    stage.hear("rank", rank=0)
    stage.hear("rank", rank=1)
    first.kill()
    first.wait()
    wait_until(lambda: [p.name for p in tmp_path.iterdir()] == ["srobust-1.0.1-1.pipe"], 20, "one is left")
    second.kill()
    second.wait()
    assert stage.agent is not None
    assert stage.agent.stdin is not None
    stage.agent.stdin.close()  # the supervisor ends it before it has looked again
    wait_until(lambda: not list(tmp_path.iterdir()), 20, "none is left")
