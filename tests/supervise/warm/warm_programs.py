"""Real Python processes as ranks have them, started cold or warm; without Slurm, which only sets their environment."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from helpers import wait_until

from slurm_robust.supervise.agent import packing, warm_processes
from slurm_robust.supervise.agent.clock import CLOCK
from slurm_robust.supervise.agent.ranks import ProcessFinder, Target
from slurm_robust.supervise.agent.warm_messages import AskWarm, WarmAnswer
from slurm_robust.supervise.warm import fitness

ATTEMPT = "1.0.7.2"


class WarmPrograms:
    """Processes of one made-up job on one made-up node."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.job = str(secrets.randbelow(10**9) + 10**9)
        self.target = Target(self.job, "n1", "1.0.7.1", "0")
        self._finder = ProcessFinder(self.target, CLOCK)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.within_s = 0.5
        self.path: list[str] = []
        """PYTHONPATH of the user."""

    def program(self, text: str) -> Path:
        """A program."""
        path = self.folder / "program.py"
        path.write_text(text)
        return path

    def module(self, name: str, text: str) -> None:
        """A module of the user, in a folder on PYTHONPATH."""
        folder = self.folder / "modules"
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.py").write_text(text)
        self.path = [str(folder)]

    def environment(self, task: int = 0, **more: str) -> dict[str, str]:
        """What Slurm and the user's shell would give a rank."""
        env = {"PATH": os.environ["PATH"], "HOME": str(self.folder), "LANG": "C.UTF-8", "SLURM_JOB_ID": self.job}
        env |= {"SLURMD_NODENAME": "n1", "SLURM_STEP_ID": "3", "SLURM_PROCID": str(task), "SLURM_STEP_NUM_TASKS": "1"}
        env |= {"PYTHONPATH": os.pathsep.join(self.path)} if self.path else {}
        return {**env, "SROBUST_ATTEMPT": ATTEMPT, "SROBUST_RESUME_STEP": "-1", **more}

    def start(self, env: dict[str, str], *arguments: str, options: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        """Start the program, with its output in pipes, as slurmstepd would."""
        argv = [sys.executable, *options, str(self.folder / "program.py"), *arguments]
        process = subprocess.Popen(
            argv, env=env, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.processes.append(process)
        return process

    def warm(self, *arguments: str, options: Sequence[str] = (), **more: str) -> subprocess.Popen[bytes]:
        """Start it as a warm process."""
        env = self.environment(**more)
        return self.start({**env, **fitness.environment("wait", env)}, *arguments, options=options)

    def ask(self, order: str, **with_it: Any) -> WarmAnswer:
        """What the agent answers to an order of the supervisor."""
        packed = packing.pack(with_it) if with_it else ""
        return warm_processes.answer(
            self._finder, AskWarm(1, ATTEMPT, order, packed, within_s=self.within_s), [], CLOCK
        )

    def prepare(self, record: str = "", extra: Sequence[str] = (), tasks: int = 1) -> WarmAnswer:
        """Have all warm processes import, and wait until they have, or refuse."""

        def sent() -> bool:
            self.ask("prepare", record=record, extra=extra, left_out=[])
            return len(self.ask("state").tasks) == tasks or bool(self.ask("state").refused)

        wait_until(sent, 20, "warm processes that are ready")
        return self.ask("memory")

    def go(self, **changed: str) -> WarmAnswer:
        """Release them."""
        return self.ask("go", set=changed, unset=[])

    def end(self) -> None:
        """End what still runs."""
        for process in self.processes:
            process.kill()
            process.communicate()


def output(process: subprocess.Popen[bytes]) -> Any:
    """The JSON that a program printed at its end."""
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err.decode()
    return json.loads(out.splitlines()[-1])
