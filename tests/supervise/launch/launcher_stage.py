"""A launcher whose supervisor is a few lines of a test, and whose srun is a shell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

DRIVER = """
import sys
from slurm_robust.supervise.launch import launcher
launcher._FIRST_MESSAGE_S, launcher._TICK_S = float(sys.argv[1]), float(sys.argv[4])
sys.exit(launcher.Launcher(["sh", "-c", sys.argv[2]], [sys.executable, "-c", sys.argv[3], "{fd}"]).run())
"""
TALK = """
import json, os, socket, sys
s = socket.socket(fileno=int(sys.argv[1])); f = s.makefile("r")
def say(**m): s.sendall(json.dumps(m).encode() + b"\\n")
def launch(script):
    say(do="launch", argv=["sh", "-c", script], env={"SROBUST_ATTEMPT": "1.0.1"}, unset=[], attempt="1.0.1")
"""


def start(
    tmp_path: Path, supervisor: str, *, plain: str = "exit 41", first_word_s: float = 10.0, tick_s: float = 60.0
) -> subprocess.Popen[str]:
    """A launcher in a folder of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(first_word_s), plain, TALK + supervisor, str(tick_s)],
        cwd=tmp_path,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
