"""`srobust stacks` on a live job: once, and again and again."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import wait_until

from slurm_robust.cli.commands.stacks import motion_line
from slurm_robust.devcluster.cluster import DevCluster
from slurm_robust.localize.evidence import Capture, CapturedProcess, CapturedThread, RankCapture, StackFrame
from slurm_robust.localize.evidence_folder import read_folder

RANKS = """
import os, time
def stands():
    time.sleep(1000)
def turns():
    number = 0
    while True:
        number += 1
turns() if os.environ["SLURM_PROCID"] == "1" else stands()
"""


def rank(number: int, line: int, cpu_s: float = 1.0) -> RankCapture:
    """A rank that stands at a line."""
    thread = CapturedThread((StackFrame("loop", "/home/u/train.py", line),), "MainThread", 1, main=True)
    return RankCapture(number, "n1", (CapturedProcess(100 + number, 1, "S", "python", cpu_s, 0, "", (thread,)),))


def test_who_moved_is_told_in_a_line() -> None:
    """Between two captures one moved and one did not; one capture shows no motion."""
    before, now = Capture(10.0, (rank(0, 5), rank(1, 5))), Capture(12.0, (rank(0, 5), rank(1, 9)))
    assert motion_line(before, now, 2) == "capture 2 in 2.0 s: rank 1 moved, rank 0 stood still"
    assert motion_line(None, now, 1) == "capture 1: motion is not known"


@pytest.mark.slurm
@pytest.mark.timeout(120)
def test_a_live_tree_is_redrawn_until_the_job_ends(devcluster: DevCluster, tmp_path: Path) -> None:
    """On a terminal each look replaces the last, and all are kept; Ctrl-C harms no rank; it ends with the job."""
    (tmp_path / "ranks.py").write_text(RANKS)
    wrap = f"srun -l {sys.executable} {tmp_path}/ranks.py"
    job = devcluster.run(["sbatch", "--parsable", "-N2", "-n2", "--wrap", wrap]).stdout.strip()
    state = ["squeue", "-h", "-o", "%T", "-j", job]
    wait_until(lambda: "RUNNING" in devcluster.run(state).stdout, 30, "the job's start")
    shown, screen = tmp_path / "shown", pty.openpty()
    start = "from slurm_robust.cli.main import cli; cli()"
    command = [sys.executable, "-c", start, "stacks", job, "--every", "1", "--save", str(shown)]
    told = b""
    with subprocess.Popen(command, stdout=screen[1], stderr=subprocess.STDOUT, env=devcluster.env) as process:
        os.close(screen[1])

        def heard(words: bytes) -> bool:
            nonlocal told
            try:
                told += os.read(screen[0], 65536)
            except OSError:
                return words in told
            return words in told

        # A rank that has hardly begun may stand still in the first captures.
        wait_until(lambda: heard(b"capture 3") and b"rank 1 moved" in told, 60, "a third capture and a motion")
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    os.close(screen[0])
    assert b"\x1b[H\x1b[J" in told
    assert b"stands" in told
    assert "RUNNING" in devcluster.run(state).stdout
    captures = read_folder(shown).evidence.captures
    assert len(captures) >= 3
    assert {r.rank for r in captures[-1].ranks} == {0, 1}
    ends = subprocess.Popen([*command[:-2]], stdout=subprocess.PIPE, env=devcluster.env, text=True)
    assert ends.stdout is not None
    for line in ends.stdout:
        if line.startswith("capture 2"):
            devcluster.run(["scancel", job])
            break
    rest = ends.communicate(timeout=60)[0]
    assert ends.returncode in (0, 1), rest
    assert "\x1b" not in rest
