"""The srun of the test step, without Slurm."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from helpers import wait_until

PROGRAM = """if True:
    import asyncio
    from slurm_robust.stoptime.agent_step import AgentStep, StepTarget
    async def wait():
        step = AgentStep(StepTarget(("n1",)), print)
        await step.start(wait_s=30, limit_s=60)
        print(step._process.pid, flush=True)
        await asyncio.sleep(60)
    asyncio.run(wait())
"""


def test_an_srun_that_waits_for_its_nodes_ends_with_a_killed_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads no stdin while it is queued."""
    fake = tmp_path / "srun"
    fake.write_text("#!/bin/sh\nexec sleep 600\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        srun = psutil.Process(int(process.stdout.readline()))
        process.send_signal(signal.SIGKILL)
        process.wait()
    try:
        wait_until(lambda: not srun.is_running(), 10, "srun has ended")
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            srun.kill()
