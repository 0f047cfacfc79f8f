"""The agent kills what outlives an ended attempt."""

from __future__ import annotations

import signal
from pathlib import Path

from agent_stage import AgentStage
from helpers import wait_until

from slurm_robust.supervise.agent.messages import (
    Cleaned,
    CleanUp,
    RankFound,
)


def test_clean_ends_what_outlived_its_step(stage: AgentStage) -> None:
    """Orphans of the ended attempt are killed; the answer says that nothing is left; another attempt is not touched."""
    victim, other = stage.victim(0), stage.victim(1, SROBUST_ATTEMPT="1.0.2")
    stage.start_agent()
    stage.receive(RankFound, rank=0)
    stage.send(CleanUp(3, "1.0.1"))
    assert stage.receive(Cleaned, request_id=3).left == ()
    stage.send(CleanUp(3, "1.0.1"))
    stage.send(CleanUp(6, "1.0.1"))
    assert stage.receive(Cleaned).request_id == 6, "told again, the same is not begun twice"
    assert victim.wait(10) == -signal.SIGKILL
    assert other.poll() is None


PARENT = """
import os, pathlib, sys, time
child = os.fork()
if child == 0:
    held = b"x" * (256 << 20)  # takes a while to die
    pathlib.Path("{where}/child").write_text(str(os.getpid()))
    time.sleep(1000)
os.waitpid(child, 0)
pathlib.Path("{where}/reacted").touch()
time.sleep(1000)
"""


def test_clean_ends_a_rank_after_its_loaders(stage: AgentStage, tmp_path: Path) -> None:
    """A slurmstepd that finds processes when its task has ended waits a second; and no rank sees its loader die."""
    rank = stage.victim(0, code=PARENT.replace("{where}", str(tmp_path)))
    stage.start_agent()
    stage.receive(RankFound, rank=0)
    written = tmp_path / "child"
    child = wait_until(lambda: written.exists() and written.read_text(), 10, "the loader")
    stage.send(CleanUp(4, "1.0.1"))
    assert rank.wait(timeout=10) == -signal.SIGKILL
    stat = Path(f"/proc/{child}/stat")
    try:
        state = stat.read_text().rpartition(")")[2].split()[0]
    except OSError:
        state = "gone"
    assert state in ("Z", "X", "gone"), "the loader outlived its rank"
    assert not (tmp_path / "reacted").exists()
    assert stage.receive(Cleaned, request_id=4).left == ()
