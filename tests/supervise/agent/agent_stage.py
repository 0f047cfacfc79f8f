"""Victims of a made-up job, and the real agent that watches them; without Slurm: an agent reads environments."""

from __future__ import annotations

import json
import os
import queue
import secrets
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, TypeVar

from helpers import wait_until

from slurm_robust.supervise.agent import messages, packing, wire
from slurm_robust.supervise.reported.watch_step import py_spy_path

ROOT = Path(__file__).resolve().parents[3]
M = TypeVar("M")

VICTIM = """
import sys, time
sys.path.insert(0, {root!r})
from slurm_robust import progress
def training_loop():
    for i in range(10**6):
        progress.step(i, loss=0.5)
        time.sleep(0.05)
training_loop()
"""


class AgentStage:
    """Victims of one made-up job, and the agent that watches them."""

    def __init__(self) -> None:
        self.job = str(secrets.randbelow(10**9) + 10**9)
        self.processes: list[subprocess.Popen[Any]] = []
        self._inbox: queue.Queue[messages.FromAgent] = queue.Queue()
        self.unread: list[messages.FromAgent] = []
        self.agent: subprocess.Popen[str] | None = None

    def env(self, procid: int, **more: str) -> dict[str, str]:
        """What Slurm would put into a rank's environment."""
        return {
            "PATH": os.environ["PATH"],
            "SLURM_JOB_ID": self.job,
            "SLURMD_NODENAME": "n1",
            "SLURM_STEP_ID": "0",
            "SLURM_PROCID": str(procid),
            "SLURM_STEP_NUM_TASKS": "2",
            "SROBUST_ATTEMPT": "1.0.1",
            **more,
        }

    def victim(
        self, procid: int, *, prefix: tuple[str, ...] = (), code: str = VICTIM, **more: str
    ) -> subprocess.Popen[Any]:
        """Start a rank."""
        argv = [*prefix, sys.executable, "-c", code.format(root=str(ROOT))]
        process = subprocess.Popen(argv, env=self.env(procid, **more))
        self.processes.append(process)
        return process

    def start_agent(self, py_spy: str = "", ring: str = "", kernel_log: str = "") -> None:
        """Start the agent as the watch step does; `ring` is its folder of node findings."""
        boot = (
            f"import sys; sys.path.insert(0, {str(ROOT)!r}); "
            "from slurm_robust.supervise.agent.main import main; main(sys.argv[1:])"
        )
        env = {"PATH": os.environ["PATH"], "SLURMD_NODENAME": "n1", "SLURM_STEP_ID": "1", "SROBUST_WATCH": "1"}
        env["SLURM_WORKING_CLUSTER"] = "own:127.0.0.1:6817:9728:109"
        arguments = [self.job, "1.0.1", "0.1", py_spy or py_spy_path(), "0", ring, kernel_log]
        self.agent = subprocess.Popen(
            [sys.executable, "-S", "-s", "-E", "-c", boot, *arguments],
            env=env,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.agent is not None
        assert self.agent.stdout is not None
        decoder = wire.Decoder()
        for line in self.agent.stdout:
            raw = decoder.feed(line)
            if raw is not None:
                self._inbox.put(messages.from_agent(raw))

    def send(self, message: messages.ToAgent) -> None:
        """Send a message to the agent."""
        assert self.agent is not None
        assert self.agent.stdin is not None
        for line in wire.encode("supervisor", 1, messages.encode(message)):
            self.agent.stdin.write(line + "\n")
        self.agent.stdin.flush()

    def receive(self, kind: type[M], **fields: Any) -> M:
        """Wait for a message of this class with these fields."""

        def found() -> M | None:
            while not self._inbox.empty():
                self.unread.append(self._inbox.get())
            for message in self.unread:
                if isinstance(message, kind) and all(getattr(message, k) == v for k, v in fields.items()):
                    self.unread.remove(message)
                    return message
            return None

        return wait_until(found, timeout_s=15, what=f"{kind.__name__} {fields}")  # type: ignore[return-value]

    def capture(self, capture_id: int = 1) -> dict[str, Any]:
        """The archive of a capture."""
        self.send(messages.TakeCapture(capture_id, 1, 10.0))
        taken = self.receive(messages.CaptureTaken, capture_id=capture_id)
        archive: dict[str, Any] = json.loads(packing.unpack(taken.packed))
        return archive

    def close_input(self) -> None:
        """Close the agent's input, as a supervisor that ends does."""
        assert self.agent is not None
        assert self.agent.stdin is not None
        self.agent.stdin.close()
        self.agent.stdin = None

    def end(self) -> None:
        """End everything that was started here."""
        for process in [*self.processes, *([self.agent] if self.agent else [])]:
            process.kill()
            process.wait()
            if process.stdout:
                process.stdout.close()
            if process.stdin:
                process.stdin.close()
