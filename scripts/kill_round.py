"""The processes of one round of scripts/kill_saves.py: agents, ranks, and what they leave behind."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import kill_point
import torch.distributed as dist
from kill_cases import Case

from slurm_robust.checkpoint.saving.rank import persister_link
from slurm_robust.supervise.agent import persisters
from slurm_robust.supervise.agent.ranks import Target

JOB, CLUSTER = "1", f"kill-{os.getpid()}"
LEFT_S = 90.0
_POLL_S = 0.005
_BEREAVED_S = 0.3
"""How long ranks live on whose job has lost a node, where they do not end by themselves."""


class Round:
    """One round; all that its processes leave behind become this process's children, so that none is missed.

    Args:
        case: What is killed.
        folder: Of its own; all that it leaves is there.
        number: Of this run's rounds.
    """

    def __init__(self, case: Case, folder: Path, number: int) -> None:
        self.case, self.folder = case, folder
        self.cluster = f"{CLUSTER}-{number}"
        self.source = ""
        """What the next training went on from."""
        self.agents: dict[int, str] = {}
        self.lost: set[str] = set()
        """Nodes whose agents have no successor."""
        os.environ[kill_point.VARIABLE] = kill_point.environment(folder, case)
        persister_link.COMMAND[2] = persisters._BOOTSTRAP = kill_point.PERSISTER

    def wrong(self) -> str:
        """Run it; what is wrong, empty if nothing is."""
        try:
            return self.story() or self.over()
        finally:
            self.over()

    def story(self) -> str:
        """What happens; what is wrong, empty if nothing is."""
        raise NotImplementedError

    @property
    def nodes(self) -> list[str]:
        """Those that the round begins with."""
        return [f"n{number}" for number in range(self.case.nodes)]

    def said(self) -> str:
        """What somebody wrote to stderr last."""
        return (self.folder / "said").read_text()[-2000:]

    def noted(self, what: str) -> int:
        """The last step that a rank noted: a name each, which no kill leaves half written."""
        return max((int(path.name.rpartition("-")[2]) for path in self.folder.glob(f"{what}-*")), default=0)

    def nobody_dies(self) -> None:
        """From now on."""
        os.environ[kill_point.VARIABLE] = kill_point.environment(self.folder, None)

    def ranks(self, what: Callable[[int, Case, Path], None], nodes: Sequence[str]) -> list[int]:
        """Have ranks on these nodes, as many on each, do it; their exit codes."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        case, folder = self.case, self.folder

        def rank_lives(rank: int) -> None:
            if case.ranks > 1:
                address = f"tcp://127.0.0.1:{port}"
                dist.init_process_group(
                    "gloo", init_method=address, rank=rank, world_size=case.ranks, timeout=timedelta(seconds=30)
                )
            what(rank, case, folder)

        pids = {
            self._fork(rank_lives, rank, nodes[rank * len(nodes) // case.ranks]): rank for rank in range(case.ranks)
        }
        codes: dict[int, int] = {}
        until_s = float("inf")
        while len(codes) < case.ranks:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid in pids:
                codes[pids[pid]] = os.waitstatus_to_exitcode(status)
            elif pid in self.agents:
                self._gone(pid)
            elif not pid:
                time.sleep(_POLL_S)
            if codes and case.victim == "node" and kill_point.struck(folder):
                until_s = min(until_s, time.monotonic() + _BEREAVED_S)
            if time.monotonic() > until_s:
                self._end([pid for pid, rank in pids.items() if rank not in codes])
        return [codes[rank] for rank in range(case.ranks)]

    def _end(self, pids: list[int]) -> None:
        """As the supervisor does, once it knows that a node is gone."""
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

    def _gone(self, pid: int) -> None:
        """As the supervisor does: an agent that died is started anew, where its node did not die with it."""
        node = self.agents.pop(pid)
        if self.case.victim == "node" and node == kill_point.struck(self.folder):
            self.lost.add(node)
        if node not in self.lost:
            self.agent(node)

    def agent(self, node: str) -> None:
        """Have an agent there."""

        def agent_lives(_: int) -> None:
            kill_point.here("agent")
            made = persisters.PersisterHost(Target(JOB, node, "", "", self.cluster))
            while not (self.folder / "over").exists():
                fd = made.listening()
                if fd < 0:
                    time.sleep(0.02)
                elif select.select([fd], [], [], 0.05)[0]:
                    made.start()
            made.end()

        self.agents[self._fork(agent_lives, -1, node)] = node

    def over(self) -> str:
        """Have all that still live end by themselves; what stays is told, and killed."""
        (self.folder / "over").touch()
        if self.reaped(lambda: False):
            return ""
        left = [pid for pid in kill_point.pids(self.folder) if Path(f"/proc/{pid}").exists()]
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return f"still there after {LEFT_S:g} s: one of {left}"

    def reaped(self, enough: Callable[[], bool]) -> bool:
        """Take leave of children until it is enough, or none is left; False if neither comes in time."""
        deadline_s = time.monotonic() + LEFT_S
        while time.monotonic() < deadline_s:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.agents.clear()
                return True
            if pid in self.agents:
                self._gone(pid) if not (self.folder / "over").exists() else self.agents.pop(pid)
            if enough():
                return True
            time.sleep(0 if pid else _POLL_S)
        return False

    def _fork(self, what: Callable[[int], None], rank: int, node: str) -> int:
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            said = os.open(self.folder / "said", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(said, 2)
            os.environ.update(SLURMD_NODENAME=node, SLURM_CLUSTER_NAME=self.cluster, SLURM_JOB_ID=JOB)
            os.environ["SLURM_LOCALID"] = str(rank % max(1, self.case.ranks // self.case.nodes))
            os.environ["SROBUST_ATTEMPT"] = "1" if self.case.keeper == "agent" else ""
            what(rank)
            code = 0
        except BaseException:  # noqa: BLE001 (a forked child has nobody to raise to)
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
