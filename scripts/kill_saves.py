"""Kill -9 at every stage of a save, again and again: is the checkpoint that is chosen afterwards always whole?

    python scripts/kill_saves.py --rounds 400 --seed 1

Each round trains one or two ranks (real processes, gloo), saves six steps, and kills a rank, the persister, or both at
a stage that the seed chooses. Then it looks what `latest` chooses, loads it, and compares every byte with what was
saved as that step. It also says which step it has to be: what was copied on all ranks is never lost with a rank, and a
persister that dies costs nothing as long as its ranks live. Exit code 0: all rounds were right.
"""

from __future__ import annotations

import argparse
import collections
import os
import random
import signal
import socket
import sys
import tempfile
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist

from slurm_robust import checkpoint
from slurm_robust.checkpoint.saving import buffers, link
from slurm_robust.checkpoint.saving.checkpointer import Checkpointer

STEPS = 6
OF_TRAINER = (
    "slot chosen",
    "slot void",
    "values copied",
    "half copied",
    "all copied",
    "slot complete",
    "persister told",
)
OF_PERSISTER = (
    "copy taken", "folder made", "file written", "file renamed", "part noted", "about to seal", "sealed", "cleaned up",
    "pruned", "copy finished",
)  # fmt: skip
ORPHANED_S = 1.0
KILLER = f"""
import os, signal, sys
sys.path.insert(0, sys.argv.pop(1))
point, nth, mark, both = sys.argv.pop(1), int(sys.argv.pop(1)), sys.argv.pop(1), sys.argv.pop(1)
from slurm_robust.checkpoint.saving import persister, writing
persister.ORPHANED_TIMEOUT_S = {ORPHANED_S}
seen = 0
def reached(here):
    global seen
    seen += here == point
    if here == point and seen == nth and not os.path.exists(mark):
        open(mark, "w").close()  # its successor is spared
        for pid in map(int, filter(None, both.split(","))):
            os.kill(pid, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
writing.reached = reached
persister.main(sys.argv[1:])
"""


class Case(NamedTuple):
    """One round.

    Attributes:
        ranks: How many there are.
        victim: `rank`, `persister`, or `both`.
        point: Where it is killed.
        nth: At which time that it comes there.
    """

    ranks: int
    victim: str
    point: str
    nth: int


def cases(seed: int, rounds: int) -> list[Case]:
    """Every stage comes at least once before any comes again."""
    chance = random.Random(seed)  # noqa: S311 (the same each time, on purpose)
    found: list[Case] = []
    while len(found) < rounds:
        lap = [("rank", point) for point in OF_TRAINER]
        lap += [(victim, point) for victim in ("persister", "both") for point in OF_PERSISTER]
        chance.shuffle(lap)
        found += [Case(chance.choice((1, 2)), victim, point, chance.randint(1, STEPS - 1)) for victim, point in lap]
    return found[:rounds]


def state(step: int) -> dict[str, object]:
    """What is saved as that step: other bytes at each."""
    generator = torch.Generator().manual_seed(step)
    sizes = (1, 70_001, 300_000, 5)
    tensors = {f"t{n}": torch.randn(size, generator=generator) for n, size in enumerate(sizes)}
    return {"tensors": tensors, "step": step}


def train(rank: int, case: Case, folder: Path, port: int) -> None:
    """A rank: it saves all steps, or dies."""
    if case.ranks > 1:
        dist.init_process_group(
            "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2, timeout=timedelta(seconds=30)
        )
    link.COMMAND = [sys.executable, "-c", KILLER, link.COMMAND[3], "nowhere", "1", str(folder / "killed"), ""]
    if case.victim != "rank":
        (folder / f"pid-{rank}").write_text(str(os.getpid()))
        while len(list(folder.glob("pid-*"))) < case.ranks:
            time.sleep(0.005)
        pids = ",".join(path.read_text() for path in folder.glob("pid-*")) if case.victim == "both" else ""
        link.COMMAND[4:] = [case.point, str(case.nth), str(folder / "killed"), pids]
    seen = 0

    def reached(here: str) -> None:
        nonlocal seen
        seen += here == case.point
        if case.victim == "rank" and rank == case.ranks - 1 and here == case.point and seen == case.nth:
            os.kill(os.getpid(), signal.SIGKILL)

    buffers.reached = reached
    saver = Checkpointer(folder / "ckpt", keep=2)
    for step in range(1, STEPS + 1):
        assert saver.save(step, state(step)), saver.failures
        if step % 2 == 0:
            sealed = saver.wait(60.0)
            assert sealed == step, (sealed, step, saver.failures)
            (folder / "sealed").write_text(str(step))
    assert saver.failures == []


def expected(case: Case, sealed: int) -> set[int]:
    """The steps that may be chosen."""
    if case.victim == "persister":
        return {STEPS}
    if case.victim == "both":
        return {sealed, sealed + 1, sealed + 2}
    whole = case.point in ("slot complete", "persister told")
    # The other rank may just have been waiting to begin: then its copy of that step was never made.
    return {case.nth} if whole and case.ranks == 1 else {case.nth, case.nth - 1} if whole else {case.nth - 1}


def one_round(case: Case, folder: Path) -> str:
    """Run it; what is wrong, empty where nothing is."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    pids = [_fork(rank, case, folder, port) for rank in range(case.ranks)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    if case.victim == "persister" and any(codes):
        return f"ranks ended with {codes}: {(folder / 'said').read_text()[-2000:]}"
    if case.victim != "persister" and not any(codes):
        return f"nobody was killed: {codes}"
    sealed_file = folder / "sealed"
    allowed = expected(case, int(sealed_file.read_text()) if sealed_file.exists() else 0)
    deadline_s = time.monotonic() + 20
    while True:
        found = checkpoint.latest(folder / "ckpt", deep=True)
        if max(found.step, 0) in allowed or time.monotonic() > deadline_s:
            break
        time.sleep(0.02)
    if max(found.step, 0) not in allowed:
        return f"step {found.step} is chosen, allowed are {sorted(allowed)}"
    return _differs(folder / "ckpt", found)


def _differs(directory: Path, found: checkpoint.Found) -> str:
    if found.path is None:
        return ""
    report = checkpoint.verify(found.path)
    if not report.verified:
        return f"{found.path} does not verify: {report.problems}"
    pid = os.fork()
    if pid == 0:
        os._exit(_loads(directory, found.step))
    return "" if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0 else f"{found.path} does not load bit for bit"


def _loads(directory: Path, step: int) -> int:
    """Load it as a restarted training does; 0 where every byte is what was saved as that step."""
    into, meant = state(999), state(step)
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # that the killed save was passed over is no news
        loaded = Checkpointer(directory, asynchronous=False).load_latest(into)
    except BaseException:  # noqa: BLE001 (a forked child has nobody to raise to)
        traceback.print_exc()
        return 1
    tensors, should = into["tensors"], meant["tensors"]
    assert isinstance(tensors, dict)
    assert isinstance(should, dict)
    same = all(torch.equal(tensors[name], should[name]) for name in should)
    return 0 if loaded == step and into["step"] == step and same else 1


def _fork(rank: int, case: Case, folder: Path, port: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        said = os.open(folder / "said", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(said, 2)
        train(rank, case, folder, port)
        code = 0
    except BaseException:  # noqa: BLE001 (as above)
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
    began_s, wrong = time.monotonic(), 0
    told: collections.Counter[str] = collections.Counter()
    for number, case in enumerate(cases(args.seed, args.rounds)):
        # A persister that outlived its ranks may still write there.
        with tempfile.TemporaryDirectory(prefix="kill-saves-", ignore_cleanup_errors=True) as folder:
            why = one_round(case, Path(folder))
        told[case.victim] += 1
        if why:
            wrong += 1
            print(f"round {number}, {case}: {why}", flush=True)
    kills = ", ".join(f"{count} of {victim}" for victim, count in sorted(told.items()))
    print(f"{args.rounds} kills ({kills}), seed {args.seed}: {wrong} wrong, {time.monotonic() - began_s:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
