"""Kill -9 at every stage of a save, again and again: is the checkpoint that is chosen afterwards always whole?

    python scripts/kill_saves.py --rounds 400 --seed 1

Each round trains one or two ranks (real processes, gloo) on one or two nodes (by their names: each has a persister of
its own), and saves six steps. A rank, a persister, a node's agent, or all processes of a node are killed at a stage
that the seed chooses, of the copy as of the writing. Then it looks what `latest` chooses, starts the training anew,
compares every byte that it loads with what was saved as that step, and has it save one step more. It also says which
step it has to be: what was copied on all ranks is never lost with a rank, and an agent or a persister that dies costs
nothing as long as its ranks live. Exit code 0: all rounds were right.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import json
import os
import random
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import kill_point
import torch
import torch.distributed as dist
from kill_training import STEPS, Case, go_on, train

from slurm_robust import checkpoint
from slurm_robust.checkpoint.saving import link
from slurm_robust.supervise.agent import persist
from slurm_robust.supervise.agent.ranks import Target

OF_COPY = (
    "slot chosen", "slot void", "values copied", "half copied", "all copied", "slot complete", "persister told",
)  # fmt: skip
OF_WRITING = (
    "folder made", "file written", "file renamed", "part noted", "about to seal", "sealed", "cleaned up",
    "about to remove", "out of sight", "flush",
)  # fmt: skip
OF_PERSISTER = ("copy taken", *OF_WRITING, "pruned", "copy finished")
FEWER = {"about to remove": 3, "out of sight": 3, "pruned": 4}
"""Times that they come at least; `flush` comes about ten times a save, and all others once a save."""
FLUSHES = 24
JOB, CLUSTER = "1", f"kill-{os.getpid()}"
LEFT_S = 90.0
_PR_SET_CHILD_SUBREAPER = 36


def cases(seed: int, rounds: int) -> list[Case]:
    """Every stage and victim comes at least once before any comes again."""
    chance = random.Random(seed)  # noqa: S311 (the same each time, on purpose)
    found: list[Case] = []
    while len(found) < rounds:
        lap = [(victim, "trainer", point) for victim in ("rank", "persister", "agent", "node") for point in OF_COPY]
        lap += [(victim, "writer", point) for victim in ("persister", "agent", "node") for point in OF_PERSISTER]
        lap += [("rank", "writer", point) for point in OF_WRITING]
        chance.shuffle(lap)
        for victim, side, point in lap:
            ranks, nodes = chance.choice([(1, 1), (2, 1), (2, 2)])
            keeper = "agent" if victim == "agent" else chance.choice(("agent", "own"))
            keeper = "none" if (victim, side) == ("rank", "writer") else keeper
            times = FLUSHES if point == "flush" else FEWER.get(point, STEPS - 1)
            found.append(Case(ranks, nodes, keeper, victim, side, point, chance.randint(1, times)))
    return found[:rounds]


class Round:
    """The processes of one round; all they leave behind become this process's children, so that none is missed."""

    def __init__(self, case: Case, folder: Path, number: int) -> None:
        self.case, self.folder = case, folder
        self.cluster = f"{CLUSTER}-{number}"
        self.agents: dict[int, int] = {}
        os.environ[kill_point.VARIABLE] = kill_point.environment(folder, case.side, case.point, case.nth, case.victim)
        link.COMMAND[2] = persist._BOOTSTRAP = kill_point.PERSISTER

    def wrong(self) -> str:
        """Run it; what is wrong, empty where nothing is."""
        try:
            return self._story() or self._over()
        finally:
            self._over()

    def _story(self) -> str:
        case = self.case
        if case.keeper == "agent":
            for node in range(case.nodes):
                self._agent(node)
        why = self._first()
        in_memory = case.keeper == "agent" and case.victim == "rank"
        if not why and not in_memory:
            why = self._over()
        low, high = self._allowed()
        if not why and not in_memory:
            found = checkpoint.latest(self.folder / "ckpt", deep=True)
            why = self._chosen(found, low, high)
            # A save whose shares are all there is gone on from under no seal, too.
            low = max(found.step, 0)
            self.case = case._replace(keeper="none" if case.keeper == "none" else "own")
        return why or self._second(low, high)

    def _first(self) -> str:
        """Train until somebody is killed."""
        codes = self._ranks(train)
        if not (self.folder / "struck").exists():
            return f"nobody was killed: {codes}: {self._said()}"
        if self.case.victim in ("persister", "agent") and any(codes):
            return f"ranks ended with {codes}: {self._said()}"
        return ""

    def _chosen(self, found: checkpoint.Found, low: int, high: int) -> str:
        if not low <= max(found.step, 0) <= high:
            return f"step {found.step} is chosen, not one of {low} to {high}: {self._said()}"
        if found.path is None or (report := checkpoint.verify(found.path)).verified:
            return ""
        return f"{found.path} does not verify: {report.problems}"

    def _second(self, low: int, high: int) -> str:
        """Start it anew."""
        os.environ[kill_point.VARIABLE] = kill_point.environment(self.folder, "", "", 0, "")
        codes = self._ranks(go_on)
        if any(codes):
            return f"the next training ended with {codes}: {self._said()}"
        loaded = [json.loads(path.read_text()) for path in sorted(self.folder.glob("loaded-*"))]
        if any((step, same) != (loaded[0][0], True) or not low <= step <= high for step, _, same in loaded):
            return f"loaded were (step, source, bit for bit): {loaded}, allowed is {low} to {high}"
        step, found = loaded[0][0] + 1, checkpoint.latest(self.folder / "ckpt", deep=True)
        return "" if found.step == step else f"step {found.step} is there in the end, {step} was sealed"

    def _said(self) -> str:
        return (self.folder / "said").read_text()[-2000:]

    def _allowed(self) -> tuple[int, int]:
        """The oldest and the newest step that may be chosen."""
        case = self.case
        sealed = max(self._noted(f"sealed-{rank}") for rank in range(case.ranks))
        if case.victim in ("persister", "agent"):
            return STEPS, STEPS
        if case.keeper == "none":
            return sealed, sealed + 1
        copied = min(self._noted(f"copied-{rank}") for rank in range(case.ranks))
        return (copied, copied) if case.victim == "rank" else (sealed, copied)

    def _noted(self, what: str) -> int:
        """The last step that a rank noted: a name each, which no kill leaves half written."""
        return max((int(path.name.rpartition("-")[2]) for path in self.folder.glob(f"{what}-*")), default=0)

    def _ranks(self, what: Callable[[int, Case, Path], None]) -> list[int]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        case, folder = self.case, self.folder

        def rank_lives(rank: int) -> None:
            if case.ranks > 1:
                dist.init_process_group(
                    "gloo",
                    init_method=f"tcp://127.0.0.1:{port}",
                    rank=rank,
                    world_size=2,
                    timeout=timedelta(seconds=30),
                )
            what(rank, case, folder)

        pids = {self._fork(rank_lives, rank, rank * case.nodes // case.ranks): rank for rank in range(case.ranks)}
        codes: dict[int, int] = {}
        while len(codes) < case.ranks:
            pid, status = os.waitpid(-1, 0)
            if pid in pids:
                codes[pids[pid]] = os.waitstatus_to_exitcode(status)
            elif pid in self.agents:
                self._gone(pid)
        return [codes[rank] for rank in range(case.ranks)]

    def _gone(self, pid: int) -> None:
        """As the supervisor does: an agent that died is started anew, where its node did not die with it."""
        node = self.agents.pop(pid)
        if self.case.victim != "node":
            self._agent(node)

    def _agent(self, node: int) -> None:
        def agent_lives(_: int) -> None:
            kill_point.here("agent")
            made = persist.Persist(Target(JOB, f"n{node}", "", "", self.cluster))
            while not (self.folder / "over").exists():
                fd = made.listening()
                if fd < 0:
                    time.sleep(0.02)
                elif select.select([fd], [], [], 0.05)[0]:
                    made.start()
            made.end()

        self.agents[self._fork(agent_lives, -1, node)] = node

    def _over(self) -> str:
        """Have all that still live end by themselves; what stays is told, and killed."""
        (self.folder / "over").touch()
        deadline_s = time.monotonic() + LEFT_S
        while time.monotonic() < deadline_s:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.agents.clear()
                return ""
            time.sleep(0 if pid else 0.01)
        left = kill_point.pids(self.folder)
        for pid in left:
            if Path(f"/proc/{pid}").exists():
                os.kill(pid, signal.SIGKILL)
        return f"still there after {LEFT_S:g} s: one of {left}"

    def _fork(self, what: Callable[[int], None], rank: int, node: int) -> int:
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            said = os.open(self.folder / "said", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(said, 2)
            os.environ.update(SLURMD_NODENAME=f"n{node}", SLURM_CLUSTER_NAME=self.cluster, SLURM_JOB_ID=JOB)
            os.environ["SLURM_LOCALID"] = str(rank % max(1, self.case.ranks // self.case.nodes))
            os.environ["SROBUST_ATTEMPT"] = "1" if self.case.keeper == "agent" else ""
            what(rank)
            code = 0
        except BaseException:  # noqa: BLE001 (a forked child has nobody to raise to)
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)


def main() -> int:
    """Run all rounds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    began_s, wrong = time.monotonic(), 0
    told: collections.Counter[str] = collections.Counter()
    for number, case in enumerate(cases(args.seed, args.rounds)):
        folder = Path(tempfile.mkdtemp(prefix="kill-saves-"))
        why = Round(case, folder, number).wrong()
        told[f"{case.victim} at {case.side}"] += 1
        if why:
            wrong += 1
            print(f"round {number}, {case}, {folder}: {why}", flush=True)
        else:
            shutil.rmtree(folder)
    kills = ", ".join(f"{count} of {victim}" for victim, count in sorted(told.items()))
    print(f"{args.rounds} kills ({kills}), seed {args.seed}: {wrong} wrong, {time.monotonic() - began_s:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
