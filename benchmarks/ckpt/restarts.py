"""How long a restart takes to load: from the memory that a node's agent keeps, and from files.

The agent's part is the real one, `supervise.agent.persist`; trainings are processes of their own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lib import ROOT

from ckpt.ways import training
from slurm_robust.checkpoint import Checkpointer
from slurm_robust.supervise.agent.persisters import PersisterHost
from slurm_robust.supervise.agent.ranks import Target

SOURCES = ("memory", "files")


def measure(size_bytes: int, rounds: int, where: Path, say: Callable[[str], None]) -> dict[str, list[float]]:
    """Save once and end, then load into fresh trainings, from memory and from files in turn; seconds of each load."""
    env = {
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURMD_NODENAME": "bench",
        "SLURM_CLUSTER_NAME": "b",
        "SROBUST_ATTEMPT": "1",
    }
    found: dict[str, list[float]] = {source: [] for source in SOURCES}
    with tempfile.TemporaryDirectory(prefix="srobust-restart-", dir=where, ignore_cleanup_errors=True) as folder:
        keeper = PersisterHost(Target(env["SLURM_JOB_ID"], "bench", "", "", "b"))
        keeper.listening()
        keeper.start()
        try:
            _training("save", size_bytes, folder, env)
            for number in range(rounds):
                say(f"{size_bytes / 1e9:g} GB: restart {number + 1} of {rounds}")
                for source in SOURCES:
                    told = _training("load", size_bytes, folder, env if source == "memory" else {})
                    assert told["source"] == source, told
                    found[source].append(told["load_s"])
        finally:
            keeper.end()
    return found


def _training(what: str, size_bytes: int, folder: str, env: dict[str, str]) -> Any:
    command = [sys.executable, "-m", "ckpt.restarts", what, str(size_bytes), folder]
    path = os.pathsep.join([str(ROOT), str(ROOT / "benchmarks")])
    full = {**os.environ, "PYTHONPATH": path, **env}
    done = subprocess.run(command, env=full, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        raise SystemExit(f"restart, {what}: {done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main(what: str, size_bytes: int, folder: Path) -> None:
    """A training that saves once, or loads once."""
    torch.set_num_threads(1)
    state = training(size_bytes)
    saver = Checkpointer(folder)
    if what == "save":
        saver.save(1, state)
        saver.wait()
        print("{}", flush=True)
        os._exit(1 if saver.failures else 0)  # a killed one does not close its Checkpointer either
    began_s = time.perf_counter()
    step = saver.load_latest(state)
    took_s = time.perf_counter() - began_s
    assert step == 1
    print(json.dumps({"load_s": took_s, "source": saver.resumed.source if saver.resumed else ""}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
