"""PyTorch leaves the pipes in /tmp that ask its flight recorder for a dump; the agent removes those that we named."""

from __future__ import annotations

from pathlib import Path

from agent_stage import AgentStage
from helpers import wait_until

from slurm_robust.supervise.agent.messages import RankFound

PIPED = """
import os, time
os.mkfifo(os.environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] + os.environ["SLURM_PROCID"] + ".pipe")
time.sleep(999)
"""


def test_pytorchs_pipes_go_with_their_ranks(stage: AgentStage, tmp_path: Path) -> None:
    """PyTorch leaves them in /tmp: that of a rank that ends goes at once, that of a rank that lives stays."""
    named = {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{tmp_path}/srobust-1.0.1-"}
    first, second = (stage.victim(number, code=PIPED, **named) for number in (0, 1))
    wait_until(lambda: len(list(tmp_path.iterdir())) == 2, 20, "both pipes")
    stage.start_agent()
    stage.receive(RankFound, rank=0)
    stage.receive(RankFound, rank=1)
    first.kill()
    first.wait()
    wait_until(lambda: [p.name for p in tmp_path.iterdir()] == ["srobust-1.0.1-1.pipe"], 20, "one is left")
    second.kill()
    second.wait()
    stage.close_input()  # the supervisor ends it before it has looked again
    wait_until(lambda: not list(tmp_path.iterdir()), 20, "none is left")
