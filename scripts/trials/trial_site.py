"""The Slurm under test: its commands, and what its nodes run. All nodes must be on this machine.

`SLURM_CONF` names it. This module does not set it up, and uses no code of the project.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

_CALL_S = 30.0
INTERRUPTED = threading.Event()
"""Set when a person ends the trials: all waits end, and everything is cleaned up."""


class DeadNode(NamedTuple):
    """What is needed to restart a node.

    Attributes:
        name: The node.
        command: How its slurmd was started.
        silence: Holds slurmd's port, and answers nothing.
    """

    name: str
    command: list[str]
    silence: socket.socket


def call(*words: str, check: bool = True) -> str:
    """One command's output.

    Raises:
        RuntimeError: it failed, and `check` was asked for.
    """
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=_CALL_S)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(words)}: exit code {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def as_user(user: str, words: list[str], folder: Path) -> str:
    """One command's output, as an ordinary user with an ordinary environment.

    Raises:
        RuntimeError: it failed.
    """
    who = pwd.getpwnam(user)
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": who.pw_dir, "USER": user}
    env["SLURM_CONF"] = os.environ["SLURM_CONF"]
    done = subprocess.run(
        words, env=env, cwd=folder, capture_output=True, text=True, check=False, timeout=_CALL_S,
        user=who.pw_uid, group=who.pw_gid, extra_groups=[],
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: exit code {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def job(number: str) -> dict[str, str]:
    """What Slurm says of a job; empty if it has forgotten it."""
    text = call("scontrol", "-o", "show", "job", number, check=False)
    return dict(re.findall(r"(\w+)=(\S*)", text))


def nodes() -> dict[str, str]:
    """Every node's state with flags, as Slurm writes it: `IDLE+DRAIN`."""
    text = call("scontrol", "-o", "show", "node", check=False)
    return dict(re.findall(r"NodeName=(\S+).*?\sState=(\S+)", text))


def unfold(folded: str) -> list[str]:
    """`n[1-3]` → `n1`, `n2`, `n3`."""
    return call("scontrol", "show", "hostnames", folded).split() if folded and folded != "(null)" else []


def reserved() -> dict[str, list[str]]:
    """The nodes of each reservation of srobust's."""
    text = call("scontrol", "-o", "show", "reservation", check=False)
    return {name: unfold(folded) for name, folded in re.findall(r"ReservationName=(srobust-\S+).*?\sNodes=(\S+)", text)}


def asked(*words: str) -> Any:
    """The JSON output of a srobust command; None if it gave none."""
    try:
        return json.loads(call("srobust", *words, "--json", check=False))
    except (ValueError, OSError, subprocess.SubprocessError):
        return None


def processes_of(node: str) -> list[int]:
    """All that a job of this Slurm runs on a node, and the slurmstepd above it.

    Another Slurm of this machine may have a node of that name.
    """
    cluster = re.findall(r"^ClusterName\s*=\s*(\S+)", call("scontrol", "show", "config"), re.MULTILINE)[0]
    marks, found = {f"SLURMD_NODENAME={node}", f"SLURM_CLUSTER_NAME={cluster}"}, set[int]()
    for pid in _pids():
        with contextlib.suppress(OSError):
            variables = set(_environ(pid))
            others = any(
                word.startswith("SLURM_CONF=") for word in variables - {f"SLURM_CONF={os.environ['SLURM_CONF']}"}
            )
            if marks <= variables and not others:
                found.add(pid)
                parent = int(re.findall(r"PPid:\s*(\d+)", Path(f"/proc/{pid}/status").read_text())[0])
                if "slurmstepd" in Path(f"/proc/{parent}/comm").read_text():
                    found.add(parent)
    return sorted(found)


def slurmd_of(node: str) -> tuple[int, list[str]]:
    """A node's slurmd of this Slurm: its pid, and how it was started.

    Raises:
        RuntimeError: there is none on this machine.
    """
    for pid in _pids():
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().rstrip("\0").split("\0")
            mine = os.environ["SLURM_CONF"] in words or f"SLURM_CONF={os.environ['SLURM_CONF']}" in _environ(pid)
            if Path(words[0]).name == "slurmd" and words[-2:] == ["-N", node] and mine:
                return pid, words
    raise RuntimeError(f"no slurmd -N {node} of {os.environ['SLURM_CONF']} runs here; start one")


def kill_node(name: str) -> DeadNode:
    """Kill everything on it at once, as a power cut would; then nothing answers on its port.

    slurmd is killed first: it would report to the controller what it lost.
    """
    pid, command = slurmd_of(name)
    port = int(re.findall(r"\sPort=(\d+)", call("scontrol", "-o", "show", "node", name) + " Port=6818")[0])
    os.kill(pid, signal.SIGKILL)
    for _ in range(3):
        for victim in processes_of(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
    return DeadNode(name, command, _silent(port))


def _silent(port: int) -> socket.socket:
    """A port with a full queue: the kernel does not answer new connections, as if the machine were gone."""
    deadline_s = time.monotonic() + _CALL_S
    while True:
        silence = socket.socket()
        silence.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            silence.bind(("", port))
        except OSError:
            silence.close()
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.1)
            continue
        silence.listen(0)
        for _ in range(2):
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
            _HELD.append(one)
        return silence


_HELD: list[socket.socket] = []


def revive(dead: DeadNode) -> None:
    """Start its slurmd again, and put it back into service."""
    dead.silence.close()
    while _HELD:
        _HELD.pop().close()
    call(*dead.command)
    wait(lambda: not re.search(r"\*|NOT_RESPONDING", nodes().get(dead.name, "*")), 60)


def back_in_service(names: set[str], within_s: float) -> str:
    """Bring nodes back that a trial took out: by the daemon if it does that itself, else by hand, as a person would.

    Returns:
        The nodes that were still out and had to be resumed by hand.
    """

    def free() -> bool:
        held = {node for name, some in reserved().items() if "standby" not in name for node in some}
        return (
            all(nodes().get(name, "").split("+")[0] == "IDLE" and "DRAIN" not in nodes()[name] for name in names - held)
            and not held & names
        )

    wait(
        lambda: free() or any("DRAIN" in nodes().get(name, "") or "DOWN" in nodes().get(name, "") for name in names),
        within_s,
    )
    out = {name: nodes().get(name, "") for name in names}
    by_hand = [name for name, state in out.items() if "DRAIN" in state or "DOWN" in state]
    for name in by_hand:
        call("scontrol", "update", f"nodename={name}", "state=resume", check=False)
    wait(free, within_s)
    return ", ".join(by_hand)


@contextlib.contextmanager
def small_disk(folder: Path, size_mb: int) -> Iterator[None]:
    """A separate file system for the checkpoints, removed afterwards."""
    call("mount", "-t", "tmpfs", "-o", f"size={size_mb}m,mode=1777", "trial-disk", str(folder))
    try:
        yield
    finally:
        call("umount", "-l", str(folder))


def wait(until: Callable[[], bool], within_s: float) -> bool:
    """Poll four times a second."""
    deadline_s = time.monotonic() + within_s
    while time.monotonic() < deadline_s:
        if until():
            return True
        if INTERRUPTED.wait(0.25):
            return until()
    return False


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 (names are enough)


def _environ(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
